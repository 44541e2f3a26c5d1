"""The command `ingestd attribution report`."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from ingestd.api import times
from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.journal import Journal
from ingestd.api.output import columns, write, write_data, write_json
from ingestd.api.store import Store
from ingestd.support.names import hint
from ingestd.support.terminal import printable
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.models import MODELS
from ..attribution.reading import Erasure, Seen
from ..attribution.touches import Touch
from ..sources import Channels
from .cost_commands import register as register_costs
from .costs import read_costs
from .periods import EVERY, Periods, TimeZone, instant
from .report import BY, Report, columns_of
from .text import Form, csv_lines, members, table

__all__ = ["register"]

_PAGE = 500
_DAY = 86_400_000


ReadRecord = Callable[[Record, UnusableIds], Seen | Erasure | None]
"""Reads a record by the rules of the shop."""


def register(commands: Commands, read: ReadRecord, channels: Channels, time_zone: TimeZone, cost_life: int) -> None:
    """`cost_life` is how long costs are kept, in milliseconds."""
    register_costs(commands, time_zone, cost_life)
    parser = commands.add(
        "attribution",
        "report",
        partial(report, read=read, channels=channels, cost_life=cost_life),
        help="show orders, revenue and sessions by channel, source, campaign, page or product",
        examples=[
            "ingestd attribution report --since 30d --by source",
            "ingestd attribution report --since 2026-11-01 --until 2026-11-30 --by channel,campaign --compare",
            "ingestd attribution report --since 7d --model linear --tenant shop --csv",
        ],
    )
    parser.add_argument(
        "--since", required=True, type=instant, metavar="TIME", help="a date, a time, or an age such as 30d"
    )
    parser.add_argument(
        "--until", type=instant, metavar="TIME", help="the end: a date, which is included, or a time, which is not"
    )
    parser.add_argument(
        "--by",
        type=_by,
        metavar="COLUMNS",
        help=f"the columns to group by, such as channel,source: {', '.join(BY)}; campaign alone is source, medium and"
        " name; model shows all models beside each other; default: source",
    )
    parser.add_argument("--every", choices=EVERY, help="a row for each day, week or month")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare with the time before: of the same length, or a month with the month before",
    )
    parser.add_argument(
        "--paths", action="store_true", help="show the sequences of touchpoints before orders, by default of channels"
    )
    parser.add_argument(
        "--model", choices=MODELS, help="the model whose credits are added up; default: the model of each attribution"
    )
    parser.add_argument("--tenant", metavar="TENANT", help="only this shop")
    parser.add_argument(
        "--time-zone", type=_time_zone, default=time_zone, metavar="ZONE",
        help="the time zone of dates, days, weeks and months; default: plugins.attribution.time_zone",
    )  # fmt: skip
    parser.add_argument("--keep-case", action="store_true", help="keep rows apart that differ only in case")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object a line")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")


def _by(text: str) -> Sequence[str]:
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in BY:
            raise ArgumentTypeError(f"there is no column {name!r}; {hint(name, BY)}")
    return names


def _time_zone(text: str) -> TimeZone:
    try:
        return TimeZone.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


async def report(arguments: Namespace, daemon: Daemon, *, read: ReadRecord, channels: Channels, cost_life: int) -> None:
    by = arguments.by or (["channel"] if arguments.paths else ["source"])
    by_columns = columns_of(by)
    if arguments.paths and {"model", "product"} & {*by}:
        raise CommandError("--paths shows touchpoints, which have no product and no model: leave them out of --by")
    periods = Periods(
        arguments.since, arguments.until, arguments.time_zone, every=arguments.every, compare=arguments.compare
    )
    if arguments.until is not None and periods.span.since >= periods.span.until:
        raise CommandError("--until is not after --since")

    def read_touch(record: Record) -> Touch | None:
        seen = read(record, daemon.unusable_ids)
        return seen.touch if isinstance(seen, Seen) and seen.excluded is None else None

    def channel(texts: Mapping[str, Any]) -> str:
        """Of a touchpoint, or of what a campaign cost. Records of earlier versions have no channel."""
        return texts.get("channel") or channels.of(texts.get("source"), texts.get("medium"), texts.get("name"))

    made = Report(
        by_columns,
        (arguments.model, *MODELS) if "model" in by else (arguments.model,),
        numbers=periods.number,
        first=periods.first,
        last=periods.last,
        read_touch=read_touch,
        is_visitor=lambda visitor: visitor not in daemon.unusable_ids,
        channel=channel,
        tenant=arguments.tenant,
        since=periods.since - _DAY,  # a session that began before has an event in this day
        until=periods.until,
        keep_case=arguments.keep_case,
        paths=arguments.paths,
    )
    partitions = daemon.partitions if arguments.tenant is None else daemon.all_of_tenant(arguments.tenant)
    missing = MissingPartitions(partitions)
    oldest: list[int] = []
    for partition in partitions:
        with missing.tolerating(partition):
            extent = await partition.journal.extent()
            if extent.first > 1:
                oldest.append(times.now() if extent.oldest_at is None else extent.oldest_at)
            async for records in _pages(partition.journal):
                for record in records:
                    made.add(record)
    for tenant in made.tenants | ({arguments.tenant} - {None}) if made.takes_costs else ():
        with missing.tolerating(daemon.of_tenant(tenant)):
            await _add_costs(made, daemon.of_tenant(tenant).store, tenant, periods, cost_life)
    lines = made.lines(compare=arguments.compare)
    form = Form(
        ("path",) if arguments.paths else by_columns,
        periods.label,
        every=arguments.every is not None,
        compare=arguments.compare,
        models=MODELS if "model" in by else (),
        visitors=made.visitors,
    )
    notes = [*_notes(made, periods, max(oldest, default=None))]
    if arguments.json:
        write_json(*(members(line, form) for line in lines))
    elif arguments.csv:
        texts = csv_lines(lines, form)
        write_data(map(printable, texts) if sys.stdout.isatty() else texts, end="\r\n")
    else:
        write(table(lines, form, columns()) if lines else ["no orders"])
        write(["", *notes] if notes else [])
        notes = []
    sys.stderr.writelines(f"{note}\n" for note in notes)
    missing.check("orders of its tenants are missing here")


async def _add_costs(made: Report, store: Store, tenant: str, periods: Periods, life: int) -> None:
    first, last = periods.days
    today = datetime.fromtimestamp(times.now() / 1000, UTC).date()
    first = max(first, today - timedelta(milliseconds=life + 3 * _DAY))
    async for day, costs in read_costs(store, tenant, first, min(last, today + timedelta(days=1))):
        number = periods.number_of_day(day)
        for cost in costs if number is not None else ():
            made.add_cost(cost, number or 0)


async def _pages(journal: Journal) -> AsyncIterator[Sequence[Record]]:
    position, last = 0, await journal.last()
    while position < last:
        records = await journal.read(position, _PAGE)
        if not records:
            return
        yield records
        position = records[-1].position


def _notes(made: Report, periods: Periods, oldest: int | None) -> Iterator[str]:
    """What the report lacks. `oldest` is the time of the oldest record, if the journal has removed earlier ones."""
    if periods.before is not None:
        before = f"{periods.text(periods.before.since)} to {periods.text(periods.before.until)}"
        yield f"compared with {before}"
    if made.not_counted:
        yield f"not counted: amounts over 10^12, of {made.not_counted} orders"
    if oldest is not None and oldest > periods.since:
        yield f"missing: orders and sessions before {periods.text(oldest)}, which the journal no longer has"
