"""The table of the commands of sinks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ingestd.cli.command_line import JSON, JSON_LINES, Command

from .moments import parse_place
from .partitions import parse_letter, parse_letters

__all__ = ["sink_commands"]


def sink_commands() -> Iterator[Command]:
    yield Command(
        "sinks status",
        f"{__package__}.status:status",
        "show the progress of each sink, its failures and its dead letters",
        ["ingestd sinks status", "ingestd sinks status warehouse --json"],
        _add_names,
        json=JSON_LINES,
    )
    yield Command(
        "sinks replay",
        f"{__package__}.replay:replay",
        "write records to a sink again",
        [
            "ingestd sinks replay warehouse --from 2h",
            'ingestd sinks replay warehouse --from 2026-03-01 --to 2026-03-02 --key "Order Completed"',
        ],
        _add_records,
        json=JSON,
    )
    for name, what in (
        ("pause", "stop writing to a sink until it is resumed"),
        ("resume", "continue writing to a paused sink"),
    ):
        target = f"{__package__}.pausing:{name}"
        yield Command(f"sinks {name}", target, what, [f"ingestd sinks {name} warehouse"], _add_name, json=JSON)
    letters, module = "sinks dead-letters", f"{__package__}.letters"
    example = f"ingestd {letters}"
    yield Command(
        f"{letters} list",
        f"{module}:list_letters",
        "show all dead letters of a sink",
        [f"{example} list warehouse"],
        _add_name,
        json=JSON_LINES,
    )
    yield Command(
        f"{letters} show",
        f"{module}:show",
        "show one dead letter with its record",
        [f"{example} show warehouse 3"],
        _add_letter,
        json=JSON,
    )
    yield Command(
        f"{letters} retry",
        f"{module}:retry",
        "write dead letters to the sink again",
        [f"{example} retry warehouse 3", f"{example} retry warehouse --all"],
        _add_letters,
        json=JSON,
    )
    yield Command(
        f"{letters} discard",
        f"{module}:discard",
        "delete dead letters for good",
        [f"{example} discard warehouse 3-7 --yes"],
        _add_letters_to_delete,
        json=JSON,
    )


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these sinks")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the sink: NAME in [sinks.NAME]")


def _add_records(parser: argparse.ArgumentParser) -> None:
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
    _add_no_wait(parser)


def _add_letter(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument(
        "number", metavar="NUMBER", type=parse_letter, help="the number of the dead letter, as list shows it"
    )


def _add_letters(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument(
        "numbers",
        metavar="NUMBER",
        nargs="*",
        type=parse_letters,
        help="the number of a dead letter, or several, such as 3-7",
    )
    parser.add_argument("--all", action="store_true", help="all dead letters of the sink")
    parser.set_defaults(fail=parser.error)
    _add_no_wait(parser)


def _add_letters_to_delete(parser: argparse.ArgumentParser) -> None:
    _add_letters(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="leave the work to the daemon, and do not wait for it"
    )
