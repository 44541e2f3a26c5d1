"""The arguments of `ingestd forget`."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="U", type=_id, help="the userId of the person; their visitors are forgotten too")
    who.add_argument("--anonymous", metavar="A", type=_id, help="the anonymousId of one visitor")
    parser.add_argument(
        "--tenant", metavar="T", type=_id, help="the tenant; needed if the journal has records of several"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, and print what would be forgotten")


def _id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("expected UTF-8") from None
    if not text:
        raise argparse.ArgumentTypeError("expected an id")
    return text
