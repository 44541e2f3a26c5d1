"""The arguments of `ingestd events import`. The command has other modules, which take long to import."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingestd.support.names import check_name

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="JSON lines, compressed with gzip or not; a folder stands for the files below it, - for standard input",
    )
    parser.add_argument(
        "--tenant",
        metavar="TENANT",
        type=_tenant,
        help="the shop of messages, which name none; records of other tenants are faulty lines",
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help="what all lines are: record, or an intake such as segment; by default the files decide, if they are clear",
    )
    parser.add_argument(
        "--state",
        action="store_true",
        help="also make sessions, links, profiles and attribution of the events, merging the files by time",
    )
    parser.add_argument(
        "--unordered",
        action="store_true",
        help="with --state: go on although a file goes back by more than a minute behind an order",
    )
    parser.add_argument("--dry-run", action="store_true", help="check every line, store nothing, and print the counts")
    parser.add_argument("--errors", metavar="FILE", type=Path, help="write a JSON line for each line not imported")
    parser.add_argument(
        "--max-errors", metavar="N", type=_count, default=1000, help="end after N faulty lines; default: 1000"
    )


def _tenant(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("expected a whole number from 1")
    return int(text)
