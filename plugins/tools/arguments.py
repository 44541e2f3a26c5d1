"""The arguments of the commands. Their modules are imported when they run, because that takes long."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingestd.api.options import Duration, since
from ingestd.delivery.transforms import TYPES
from ingestd.support.names import check_name

__all__ = [
    "add_backup_arguments", "add_catalogue_arguments", "add_compare_arguments", "add_copy_arguments",
    "add_expire_arguments", "add_export_arguments", "add_forget_arguments", "add_import_arguments",
    "add_lake_arguments", "add_load_arguments", "add_place_arguments", "add_restore_arguments",
    "add_schema_check_arguments", "add_upgrade_arguments", "add_verify_arguments", "add_webhook_arguments",
]  # fmt: skip


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
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


def add_schema_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", metavar="TIME", type=since, required=True,
        help="try the events received then or later: an RFC 3339 time, or an age such as 7d",
    )  # fmt: skip


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the sink, as in [sinks.NAME]")
    parser.add_argument(
        "--since", metavar="TIME", type=since, required=True,
        help="compare records received then or later: an RFC 3339 time, or an age such as 7d",
    )  # fmt: skip


def add_catalogue_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", metavar="TIME", type=since, default=0,
        help="only events received then or later: an RFC 3339 time, or an age such as 7d",
    )  # fmt: skip
    parser.add_argument(
        "--key", dest="keys", action="append", default=[], metavar="KEY", help="only this event key; may be given again"
    )


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
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


def add_copy_arguments(parser: argparse.ArgumentParser) -> None:
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


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write; it must not exist")


def add_upgrade_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-copy", action="store_true", help="keep no copy of the former file, for a disk without room for it"
    )


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the backup")


def add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="U", type=_id, help="the userId of the person; their visitors are forgotten too")
    who.add_argument("--anonymous", metavar="A", type=_id, help="the anonymousId of one visitor")
    parser.add_argument(
        "--tenant", metavar="T", type=_id, help="the tenant; needed if the journal has records of several"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, and print what would be forgotten")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("expected a whole number from 1")
    return int(text)


def _tenant(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("expected UTF-8") from None
    if not text:
        raise argparse.ArgumentTypeError("expected an id")
    return text


def add_lake_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sink", metavar="SINK", nargs="?", help="the sink; default: the only one with a lake")


def add_expire_arguments(parser: argparse.ArgumentParser) -> None:
    add_lake_arguments(parser)
    parser.add_argument(
        "--older-than", metavar="AGE", type=_age, help="the age of the snapshots, such as 12h; default: keep_snapshots"
    )


def _age(text: str) -> Duration:
    try:
        return Duration.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenants", metavar="TENANT", nargs="*", help="only these tenants, and their partitions")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", type=_tenant, help="the tenant to move")
    parser.add_argument("--partition", required=True, metavar="NAME", help="its new partition, such as 07")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_webhook_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the table of [plugins.webhooks]")
    parser.add_argument("file", metavar="FILE", help="a file with the body of a request; - is the standard input")
    parser.add_argument(
        "--header",
        metavar="NAME: VALUE",
        action="append",
        default=[],
        help="a header of the request, such as its topic",
    )
