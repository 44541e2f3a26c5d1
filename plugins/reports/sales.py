"""The sales of some days for the page of marketers: a report by channel, source and campaign, and its course."""

from __future__ import annotations

import asyncio
import heapq
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import BadRequest
from ingestd.api.hookspecs import Daemon

from ..attribution.campaigns import OTHERS, Campaign
from ..attribution.report import Row, number, total
from ..attribution.rollups import read_tenants
from .columns import columns_of
from .course import Course
from .journals import Pause, Starts, add_costs, add_records, find_starts, read_latest
from .periods import Periods
from .reading import ReportRules
from .report import Line, Report
from .sums import Rest, rested
from .text import Form, csv_lines, members

__all__ = ["Shop", "latest_orders", "make_sales"]

_BY = ("channel", "source", "medium", "campaign")
_COLUMNS = columns_of(_BY)
_MOST = 1_000_000  # records of one report: some 15 s of CPU
_MOST_ORDERS = 10_000  # they stay in memory with the answer
_LONGEST = 400  # days
_CHOICES = ("1", "7", "30")
_DAY = 86_400_000
_STEP = 0.0005  # seconds of a thread's work without a rest: the event loop waits for Python code of other threads
_REST = 2.0  # times as long as a step


class Shop(NamedTuple):
    """What a report is made of, and by which rules."""

    daemon: Daemon
    rules: ReportRules
    most: int = _MOST
    """The most records that a report reads."""
    most_rows: int = 2000

    def today(self) -> date:
        return datetime.fromtimestamp(times.now() / 1000, self.rules.time_zone.zone).date()


class _Query(NamedTuple):
    first: date
    last: date
    """Included."""
    compare: bool
    tenant: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str], today: date) -> _Query:
        """The query of the page's parameters. Raises `BadRequest`."""
        compare, tenant = given.get("compare") != "0", given.get("tenant") or None
        if not given.get("since"):
            days = given.get("days") or "7"
            if days not in _CHOICES:
                raise BadRequest("The parameter days is 1, 7 or 30.")
            return cls(today - timedelta(days=int(days) - 1), today, compare, tenant)
        try:
            first, last = (date.fromisoformat(given.get(name) or f"{today}") for name in ("since", "until"))
        except ValueError:
            raise BadRequest("The parameters since and until are dates, such as 2026-11-01.") from None
        last = min(last, today)
        if first > last:
            raise BadRequest("The period ends before it begins, or lies in the future.")
        if (last - first).days >= _LONGEST:
            raise BadRequest(f"A period has at most {_LONGEST} days. “ingestd attribution report” takes more.")
        return cls(first, last, compare, tenant)

    def command(self, config: str) -> str:
        """The command with the same figures."""
        words = ["ingestd", "attribution", "report", "--since", f"{self.first}", "--until", f"{self.last}"]
        words += ["--by", ",".join(_BY), *(["--compare"] if self.compare else [])]
        words += [] if self.tenant is None else ["--tenant", self.tenant]
        return shlex.join([*words, "--config", config])


def _resting() -> Rest:
    """Rests in the work of a thread, so that the event loop has most of the time for events."""
    since = 0.0

    def rest() -> None:
        nonlocal since
        took = time.thread_time() - since
        if took > _STEP:
            time.sleep(_REST * min(took, 2 * _STEP))
            since = time.thread_time()

    return rest


class _Reading:
    """The report of one query."""

    def __init__(self, shop: Shop, query: _Query) -> None:
        self.periods = periods = Periods(query.first, query.last, shop.rules.time_zone, compare=query.compare)
        self.since = periods.since - _DAY  # a session that began before the period has an event in this day
        self._query = query
        self._most_rows = shop.most_rows
        self._course = Course(periods, shop.rules.time_zone)
        self._rest = _resting()
        ids = shop.daemon.unusable_ids
        self.report = Report(
            _COLUMNS, numbers=self._course.number, read_touch=lambda record: shop.rules.touch_of(record, ids),
            unusable_ids=ids, channel=shop.rules.channels.of_texts, tenant=query.tenant, since=self.since,
            until=periods.until, rest=self._rest,
        )  # fmt: skip

    def members(self) -> dict[str, Any]:
        """The sums. A thread beside the event loop calls this: those of many orders take a while."""
        periods, report, compare = self.periods, self.report, self._query.compare
        form = Form(_COLUMNS, compare=compare)
        # Only earlier orders tell new customers from others, and they are not read.
        lines = [
            line._replace(row=line.row._replace(new=None, returning=None))
            for line in _bounded(report.lines(compare=compare, group=Course.whole), self._most_rows)
        ]
        return {
            "since": f"{self._query.first}",
            "until": f"{self._query.last}",
            "before": None
            if (before := periods.before) is None
            else [periods.text(at)[:10] for at in (before.since, before.until - 1)],
            "rows": [members(line, form) for line in lines],
            "csv": "".join(f"{line}\r\n" for line in csv_lines(lines, form)),
            "visitors": report.visitors,
            "notCounted": report.not_counted,
            "course": self._course.members(report),
            "orders": _newest(report, self._rest),
        }


def _newest(report: Report, rest: Rest) -> list[dict[str, Any]]:
    """The newest orders of the period, with amounts, ids, and the fields and the share of each campaign."""
    shown = (each for each in report.orders() if Course.whole(each.number) == 0)
    newest = heapq.nlargest(_MOST_ORDERS, shown, key=lambda each: each.customer.decidedAt)
    return [
        {
            "at": each.customer.decidedAt, "tenant": each.customer.tenant, "order": each.order_id,
            "event": each.event_id, "currency": each.currency, "revenue": number(each.revenue),
            "reversed": number(each.reversed), "net": number(each.revenue - each.reversed),
            "shares": [(_names(campaign), float(weight)) for campaign, weight in each.shares[0] if weight],
        }
        for each in rested(newest, rest)
    ]  # fmt: skip


def _names(campaign: Campaign) -> tuple[str | None, ...]:
    """The fields of a campaign, one for each column."""
    named = campaign.fields or (campaign.label,)
    return (*named, *[None] * (len(_COLUMNS) - len(named)))


def _bounded(lines: Sequence[Line], most: int) -> Sequence[Line]:
    """The most important lines. The others of each currency are one: callers choose the names of campaigns."""
    if len(lines) <= most:
        return lines
    ranked = sorted(lines, key=lambda each: (-each.row.net, -each.row.orders, -(each.row.sessions or 0)))
    rest: dict[str | None, list[Line]] = {}
    for line in ranked[most:]:
        rest.setdefault(line.row.currency, []).append(line)
    others = [
        Line(0, total([each.row for each in some])._replace(campaign=OTHERS), _total_before(some))
        for some in rest.values()
    ]
    kept = {id(line) for line in ranked[:most]}
    return [*(line for line in lines if id(line) in kept), *others]


def _total_before(lines: Sequence[Line]) -> Row | None:
    rows = [line.before for line in lines if line.before is not None]
    return total(rows)._replace(campaign=OTHERS) if rows else None


async def make_sales(shop: Shop, given: Mapping[str, str], pause: Pause) -> dict[str, Any]:
    """The members of /sales.json for the parameters of the page, with `orders`, the newest of the period, and `csv`.

    `pause` lets events go first, if it is time.

    If there are too many records, the comparison is left out, and then the earliest days.
    Raises `BadRequest`, `Unavailable`.
    """
    asked = query = _Query.parse(given, shop.today())
    partitions = shop.daemon.partitions if query.tenant is None else shop.daemon.all_of_tenant(query.tenant)
    missing = MissingPartitions(partitions)
    while True:
        reading = _Reading(shop, query)
        starts = await find_starts(partitions, missing, reading.since, shop.most)
        if starts.possible is None:
            break
        if query.compare:
            query = query._replace(compare=False)
            continue
        begin = datetime.fromtimestamp((starts.possible + _DAY) / 1000, shop.rules.time_zone.zone)
        query = query._replace(first=begin.date() + timedelta(days=1))
        if query.first > query.last:
            command = asked.command(shop.daemon.config_path)
            raise BadRequest(f"The last two days have more than {shop.most:,} records. Use the command: {command}")
    late = 0
    for partition, after in starts.after:
        with missing.tolerating(partition):
            late += await add_records(reading.report, partition.journal, after, pause)
    await add_costs(reading.report, reading.periods, shop.daemon, missing, life=shop.rules.cost_life, pause=pause)
    made = await asyncio.to_thread(reading.members)
    made |= {"zone": f"{shop.rules.time_zone}", "today": f"{shop.today()}"}
    made |= {"command": query.command(shop.daemon.config_path)}
    made |= {"tenant": query.tenant, "tenants": await _tenants(shop.daemon)}
    made["notes"] = [
        *_shortened(asked, query, shop.most),
        *_missing(reading.periods, starts, missing),
        *([f"Missing: {late} orders that attribution has not read yet."] if late else []),
        *([f"Not counted: amounts over 10^12, of {lost} orders."] if (lost := made.pop("notCounted")) else []),
    ]
    return made


def _shortened(asked: _Query, query: _Query, most: int) -> Iterator[str]:
    """What has been left out because there are too many records."""
    if query.first > asked.first:
        yield f"Exact since {query.first}: with earlier days there are more than {most:,} records."
    elif query.compare != asked.compare:
        yield f"Without comparison: with the time before there are more than {most:,} records."


def _missing(periods: Periods, starts: Starts, missing: MissingPartitions) -> Iterator[str]:
    """What the journals do not have."""
    if starts.removed is not None and starts.removed > periods.since:
        yield f"The journal begins at {periods.text(starts.removed)}: earlier orders and sessions are not counted."
    for name, reason in missing.reasons.items():
        yield f"Missing: the tenants of partition {name}, which is out of reach ({reason})."


async def latest_orders(shop: Shop, count: int, pause: Pause) -> list[dict[str, Any]]:
    """The last orders, as in `make_sales`. Fewer, if there are few among the last records of a partition."""
    found: list[dict[str, Any]] = []
    for partition in shop.daemon.partitions:
        report = Report(_COLUMNS)
        if partition.problem() is None:
            for record in await read_latest(partition.journal, count, pause):
                report.add(record)
        found += _newest(report, lambda: None)
    return sorted(found, key=lambda each: each["at"], reverse=True)[:count]


async def _tenants(daemon: Daemon) -> list[str]:
    """The tenants with orders in the last 30 days."""
    within_reach = [partition.store for partition in daemon.partitions if partition.problem() is None]
    return sorted({each for store in within_reach for each in await read_tenants(store.begin(times.now()))})
