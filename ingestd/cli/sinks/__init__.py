"""The commands of sinks: `ingestd sinks status | replay | dead-letters … | pause | resume`."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ingestd.config import Config
from ingestd.hooks.loader import Plugins

from . import letters, pausing
from .moments import parse_place
from .partitions import parse_letter, parse_letters
from .replay import replay
from .status import status

__all__ = ["register"]

_Run = Callable[[argparse.Namespace, Config, Plugins], Awaitable[None]]


class _CommandLine(Protocol):
    def add_offline(
        self, group: str, name: str, run: _Run, *, help: str, examples: Sequence[str]
    ) -> argparse.ArgumentParser: ...


def register(cli: _CommandLine) -> None:
    parser = cli.add_offline(
        "sinks",
        "status",
        status,
        help="show the progress of each sink, its failures and its dead letters",
        examples=["ingestd sinks status", "ingestd sinks status warehouse --json"],
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these sinks")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")

    parser = cli.add_offline(
        "sinks",
        "replay",
        replay,
        help="write records to a sink again",
        examples=[
            "ingestd sinks replay warehouse --from 2h",
            'ingestd sinks replay warehouse --from 2026-03-01 --to 2026-03-02 --key "Order Completed"',
        ],
    )
    _add_name(parser)
    where = "a time (ISO 8601, in UTC without an offset), an age such as 2h, or a position ([PARTITION:]POSITION)"
    parser.add_argument(
        "--from", dest="begin", required=True, type=parse_place, metavar="WHERE", help=f"the first record: {where}"
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=parse_place,
        metavar="WHERE",
        help="the last record, given as for --from; default: the last one that the sink has received",
    )
    parser.add_argument(
        "--key", dest="keys", action="append", metavar="KEY", help="only events with this key; may be given again"
    )
    _add_waiting(parser)

    for name, run, what in (
        ("pause", pausing.pause, "stop writing to a sink until it is resumed"),
        ("resume", pausing.resume, "continue writing to a paused sink"),
    ):
        parser = cli.add_offline("sinks", name, run, help=what, examples=[f"ingestd sinks {name} warehouse"])
        _add_name(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    _register_letters(cli)


def _register_letters(cli: _CommandLine) -> None:
    def add(name: str, run: _Run, help: str, *examples: str) -> argparse.ArgumentParser:
        lines = [f"ingestd sinks dead-letters {name} warehouse{example}" for example in examples]
        parser = cli.add_offline("sinks dead-letters", name, run, help=help, examples=lines)
        _add_name(parser)
        parser.set_defaults(fail=parser.error)
        return parser

    parser = add("list", letters.list_letters, "show all dead letters of a sink", "")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser = add("show", letters.show, "show one dead letter with its record", " 3")
    parser.add_argument(
        "number", metavar="NUMBER", type=parse_letter, help="the number of the dead letter, as list shows it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for parser in (
        add("retry", letters.retry, "write dead letters to the sink again", " 3", " --all"),
        add("discard", letters.discard, "delete dead letters for good", " 3-7 --yes"),
    ):
        parser.add_argument(
            "numbers",
            metavar="NUMBER",
            nargs="*",
            type=parse_letters,
            help="the number of a dead letter, or several, such as 3-7",
        )
        parser.add_argument("--all", action="store_true", help="all dead letters of the sink")
        _add_waiting(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the sink: NAME in [sinks.NAME]")


def _add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="leave the work to the daemon, and do not wait for it"
    )
