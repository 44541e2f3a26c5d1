"""The arguments of the commands. Their modules are imported when they run, because that takes long."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ingestd.api.options import Duration, since
from ingestd.delivery.transforms import TYPES
from ingestd.support.names import check_name

from .sinks.moments import parse_place
from .sinks.partitions import parse_letter, parse_letters

__all__ = [
    "of_backup", "of_catalogue", "of_compare", "of_copy", "of_expire", "of_export", "of_forget", "of_import", "of_lake",
    "of_letter", "of_letters", "of_letters_to_discard", "of_load", "of_place", "of_replay", "of_restore",
    "of_schema_check", "of_sink", "of_sinks", "of_upgrade", "of_verify", "of_webhook",
]  # fmt: skip

_Value = TypeVar("_Value")


def of_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type",
        dest="types",
        action="append",
        default=[],
        metavar="TYPE",
        help=f"only records of this type: {', '.join(TYPES)}, or a plugin's own; may be given again",
    )
    _add_keys(parser, 'only events with this key, such as "Order Completed"')
    parser.add_argument("--user", metavar="ID", help="only records with this userId")
    parser.add_argument("--anonymous", metavar="ID", help="only records with this anonymousId")
    parser.add_argument("--order", metavar="ID", help="only events and attributions of this order")
    parser.add_argument("--tenant", metavar="TENANT", help="only records of this tenant")
    _add_since(parser, "--since", "only records received then or later", age="2h")
    _add_since(parser, "--until", "only records received before", age="2h")
    parser.add_argument("--limit", metavar="N", type=_count, help="end after N records")
    parser.add_argument("--follow", action="store_true", help="continue with new records until Ctrl-C")
    parser.set_defaults(fail=parser.error)


def of_schema_check(parser: argparse.ArgumentParser) -> None:
    _add_since(parser, "--against", "try the events received then or later", required=True)


def of_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the sink, as in [sinks.NAME]")
    _add_since(parser, "--since", "compare records received then or later", required=True)


def of_catalogue(parser: argparse.ArgumentParser) -> None:
    _add_since(parser, "--since", "only events received then or later", default=0)
    _add_keys(parser, "only this event key")


def of_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="JSON lines, compressed with gzip or not; a folder stands for the files below it, - for standard input",
    )
    parser.add_argument(
        "--tenant",
        metavar="TENANT",
        type=_read_by(check_name),
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


def of_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="source", required=True, metavar="URL", help="the store to read, as in [store] url"
    )
    parser.add_argument("--to", dest="target", required=True, metavar="URL", help="the other store")
    parser.add_argument(
        "--from-config",
        metavar="FILE",
        help="the configuration with the options of the store to read, if they differ from those of the other store",
    )


def of_copy(parser: argparse.ArgumentParser) -> None:
    of_compare(parser)
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


def of_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write; it must not exist")


def of_upgrade(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-copy", action="store_true", help="keep no copy of the former file, for a disk without room for it"
    )


def of_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the backup")


def of_forget(parser: argparse.ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="U", type=_id, help="the userId of the person; their visitors are forgotten too")
    who.add_argument("--anonymous", metavar="A", type=_id, help="the anonymousId of one visitor")
    parser.add_argument(
        "--tenant", metavar="T", type=_id, help="the tenant; needed if the journal has records of several"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, and print what would be forgotten")


def of_lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sink", metavar="SINK", nargs="?", help="the sink; default: the only one with a lake")


def of_expire(parser: argparse.ArgumentParser) -> None:
    of_lake(parser)
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=_read_by(Duration.parse),
        help="the age of the snapshots, such as 12h; default: keep_snapshots",
    )


def of_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenants", metavar="TENANT", nargs="*", help="only these tenants, and their partitions")


def of_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", type=_read_by(check_name), help="the tenant to move")
    parser.add_argument("--partition", required=True, metavar="NAME", help="its new partition, such as 07")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def of_webhook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the table of [plugins.webhooks]")
    parser.add_argument("file", metavar="FILE", help="a file with the body of a request; - is the standard input")
    parser.add_argument(
        "--header",
        metavar="NAME: VALUE",
        action="append",
        default=[],
        help="a header of the request, such as its topic",
    )


def of_sinks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these sinks")


def of_sink(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the sink: NAME in [sinks.NAME]")


def of_replay(parser: argparse.ArgumentParser) -> None:
    of_sink(parser)
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
    _add_keys(parser, "only events with this key")
    _add_no_wait(parser)


def of_letter(parser: argparse.ArgumentParser) -> None:
    of_sink(parser)
    parser.add_argument(
        "number", metavar="NUMBER", type=parse_letter, help="the number of the dead letter, as list shows it"
    )


def of_letters(parser: argparse.ArgumentParser) -> None:
    of_sink(parser)
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


def of_letters_to_discard(parser: argparse.ArgumentParser) -> None:
    of_letters(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


# What several commands have


def _add_since(parser: argparse.ArgumentParser, name: str, help: str, *, age: str = "7d", **options: Any) -> None:
    text = f"{help}: an RFC 3339 time, or an age such as {age}"
    parser.add_argument(name, metavar="TIME", type=since, help=text, **options)


def _add_keys(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--key", dest="keys", action="append", default=[], metavar="KEY", help=f"{help}; may be given again"
    )


def _add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="leave the work to the daemon, and do not wait for it"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("expected a whole number from 1")
    return int(text)


def _id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("expected UTF-8") from None
    if not text:
        raise argparse.ArgumentTypeError("expected an id")
    return text


def _read_by(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """The type of an argument, with the message of its `ValueError`."""

    def type_(text: str) -> _Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return type_
