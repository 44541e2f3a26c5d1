"""The arguments of `ingestd store copy` and `ingestd store compare`."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "add_compare_arguments"]


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="source", required=True, metavar="URL", help="the store to read, as in [store] url"
    )
    parser.add_argument("--to", dest="target", required=True, metavar="URL", help="the other store")
    parser.add_argument(
        "--from-config",
        metavar="FILE",
        help="the configuration with the options of the store to read, if they differ from those of the other store",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_compare_arguments(parser)
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="copy most of it beside the daemon of the source; a run without this option copies the rest",
    )
    parser.add_argument(
        "--leave-unknown",
        action="store_true",
        help="leave out state whose tenant cannot be found, if the target has another number of partitions",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
