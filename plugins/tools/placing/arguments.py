"""The arguments of `ingestd partitions place`."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help="the tenant to move")
    parser.add_argument("--partition", required=True, metavar="NAME", help="its new partition, such as 07")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
