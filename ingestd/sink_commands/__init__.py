"""The commands of sinks: `ingestd sinks status | replay | dead-letters … | pause | resume`."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..config import Config
from ..loader import Plugins
from . import letters, pausing
from .moments import parse_point
from .replay import replay
from .status import status

__all__ = ["register"]

_Run = Callable[[argparse.Namespace, Config, Plugins], Awaitable[None]]


class _CommandLine(Protocol):
    def add_offline(self, group: str, name: str, run: _Run, *, help: str) -> argparse.ArgumentParser: ...


def register(cli: _CommandLine) -> None:
    parser = cli.add_offline("sinks", "status", status, help="how far each sink is, and what keeps it")
    parser.add_argument("names", metavar="NAME", nargs="*", help="these sinks only")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")

    parser = cli.add_offline("sinks", "replay", replay, help="write records to a sink again that it has had")
    _add_name(parser)
    where = "a time (ISO 8601, in UTC unless it says), an age such as 2h, or a position"
    parser.add_argument("--from", dest="begin", required=True, type=parse_point, metavar="WHERE", help=where)
    parser.add_argument(
        "--to", dest="end", type=parse_point, metavar="WHERE", help="the last one; else all that the sink has had"
    )
    parser.add_argument(
        "--key", dest="keys", action="append", metavar="KEY", help="only events with this key; may be given again"
    )
    _add_waiting(parser)

    parser = cli.add_offline("sinks", "dead-letters", _dead_letters, help="what a sink does not get")
    _add_letters(parser)

    for name, run, what in (
        ("pause", pausing.pause, "write nothing to a sink, until it is resumed"),
        ("resume", pausing.resume, "go on with a sink that was paused"),
    ):
        parser = cli.add_offline("sinks", name, run, help=what)
        _add_name(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_letters(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: _Run, help: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=help, description=help, allow_abbrev=False)
        # They have been read by the time the parser is whole.
        action.add_argument("--config", metavar="FILE", help="as of every command")
        action.add_argument("--set", metavar="OPTION=VALUE", action="append", default=[], help="as of every command")
        _add_name(action)
        action.set_defaults(run_letters=run, fail=action.error)
        return action

    listing = add("list", letters.list_letters, "show all dead letters of a sink")
    listing.add_argument("--json", action="store_true", help="print one JSON object a line")
    showing = add("show", letters.show, "show one of them with its record")
    showing.add_argument("number", metavar="NUMBER", type=int)
    showing.add_argument("--json", action="store_true", help="print one JSON object")
    for name, run, what in (
        ("retry", letters.retry, "write some of them to the sink again"),
        ("discard", letters.discard, "throw some of them away for good"),
    ):
        action = add(name, run, what)
        action.add_argument("numbers", metavar="NUMBER", nargs="*", type=letters.parse_numbers, help="or some: 3-7")
        action.add_argument("--all", action="store_true", help="all there are")
        if name == "discard":
            action.add_argument("--yes", action="store_true", help="do not ask")
        _add_waiting(action)


async def _dead_letters(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await arguments.run_letters(arguments, config, plugins)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="that of [sinks.NAME]")


def _add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="leave it to the daemon, and do not wait until it is done"
    )
