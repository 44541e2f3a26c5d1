"""The arguments of `ingestd events export`."""

from __future__ import annotations

import argparse

from ingestd.api.options import since
from ingestd.delivery.filters import TYPES

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type",
        dest="types",
        action="append",
        default=[],
        metavar="TYPE",
        help=f"only records of this type: {', '.join(TYPES)}, or a plugin's own; may be given again",
    )
    parser.add_argument(
        "--key",
        dest="keys",
        action="append",
        default=[],
        metavar="KEY",
        help='only events with this key, such as "Order Completed"; may be given again',
    )
    parser.add_argument("--user", metavar="ID", help="only records with this userId")
    parser.add_argument("--anonymous", metavar="ID", help="only records with this anonymousId")
    parser.add_argument("--order", metavar="ID", help="only events and attributions of this order")
    parser.add_argument("--tenant", metavar="TENANT", help="only records of this tenant")
    when = "an RFC 3339 time, or an age such as 2h"
    parser.add_argument("--since", metavar="TIME", type=since, help=f"only records received then or later: {when}")
    parser.add_argument("--until", metavar="TIME", type=since, help=f"only records received before: {when}")
    parser.add_argument("--limit", metavar="N", type=_count, help="end after N records")
    parser.add_argument("--follow", action="store_true", help="continue with new records until Ctrl-C")
    parser.set_defaults(fail=parser.error)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("expected a whole number from 1")
    return int(text)
