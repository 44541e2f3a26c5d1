"""The panel on the operators' page: the report by campaign for a day, a week or a month, for each model."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.panels import Cell, Column, Filter, Option, Panel, Table
from ingestd.api.store import State, Store
from ingestd.support.terminal import printable

from .campaigns import OTHERS
from .models import MODELS, Model
from .report import Row, money, total
from .rollups import PERIODS, read, read_tenants, rows_of, sum_up

__all__ = ["show"]

_MOST = 12  # campaigns in the table of a currency
_MOST_CURRENCIES = 6
_ALL = ""


async def show(store: Store, model: Model, config: str, selection: Mapping[str, str]) -> Panel:
    """The panel.

    `model` is the configured model, `config` the path of the configuration, and `selection` holds the filters of the
    page.
    """
    now = times.now()
    name = selection.get("period", "day")
    name = name if name in PERIODS else "day"
    period, reading = PERIODS[name], _Reading(store, now)
    known = sorted(set(await reading.of_all(read_tenants)))
    tenant = selection.get("tenant", _ALL)
    is_known = tenant in {_ALL, *known}
    rollups = await reading.of_all(lambda state: read(state, period, tenant or None)) if is_known else []
    unknown = "This tenant has no orders in the last 30 days."
    notes: dict[str, str] = {
        each: reading.missing + (_note(period.since(now), tenant, each, config) if is_known else unknown)
        for each in MODELS
    }
    tables = await asyncio.to_thread(_tables, rollups)  # a month takes some milliseconds
    return Panel(
        "Orders and revenue by campaign",
        tables,
        note=notes[model],
        notes=notes,
        choose="Model",
        chosen=model,
        filters=[*_filters(name, known, tenant if is_known else None)],
    )


class _Reading:
    """Reads all partitions of a store, at that time in milliseconds."""

    def __init__(self, store: Store, now: int) -> None:
        self.missing = ""
        """The beginning of the note, if some partitions cannot be read."""
        self._parts = store.parts
        self._now = now

    async def of_all(self, read_part: Callable[[State], Awaitable[Sequence[str]]]) -> Sequence[str]:
        """What this function reads in each partition. Raises `Unavailable` if there is one partition only."""
        answers = await asyncio.gather(
            *(read_part(part.begin(self._now)) for part in self._parts), return_exceptions=len(self._parts) > 1
        )
        found: list[str] = []
        for answer in answers:
            if isinstance(answer, Unavailable):
                self.missing = f"Some orders are missing, because a part of the store is out of reach ({answer}). "
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        return found


def _filters(period: str, tenants: Sequence[str], chosen: str | None) -> Iterator[Filter]:
    yield Filter("period", "Period", [Option(name, each.title) for name, each in PERIODS.items()], period)
    if len(tenants) > 1 or chosen != _ALL:
        options = [Option(_ALL, "All tenants"), *(Option(each, printable(each)) for each in tenants)]
        yield Filter("tenant", "Tenant", options, chosen)


def _note(since: int, tenant: str, model: Model, config: str) -> str:
    at = f"{times.format_time(since)[:19]}Z"
    of = [] if tenant == _ALL else ["--tenant", tenant]
    command = [
        "ingestd",
        "attribution",
        "report",
        "--by",
        "campaign",
        "--since",
        at,
        *of,
        "--model",
        model,
        "--keep-case",
    ]
    return (
        f"Orders received since {at[:16].replace('T', ' ')} UTC, and their reversals."
        f" The command “{shlex.join([*command, '--config', config])}” has the same figures."
    )


def _tables(rollups: Sequence[str]) -> list[Table]:
    sums, tables = sum_up(rollups), []
    orders: Counter[str | None] = Counter()
    for each in sums:
        orders[each.currency] += round(sum(each.orders))
    shown = [currency for currency, _ in orders.most_common(_MOST_CURRENCIES)]
    for currency in sorted(shown, key=lambda each: each or ""):
        some = [each for each in sums if each.currency == currency]
        for model in MODELS:
            rows = rows_of(some, model)
            if rows:
                tables.append(_table(currency, model, rows))
    return tables


def _table(currency: str | None, model: Model, rows: Sequence[Row]) -> Table:
    shown = [*rows[:_MOST]]
    if rows[_MOST:]:
        shown.append(total(rows[_MOST:])._replace(campaign=OTHERS))
    whole = all(row.orders == row.orders.to_integral_value() for row in rows)
    return Table(
        title=printable(currency or "") or "No currency",
        columns=[
            Column("Campaign"),
            Column("Orders", 0 if whole else 2),
            Column("Revenue", 2),
            Column("Reversed", 2),
            Column("Net", 2, bar=True),
        ],
        rows=[_cells(row) for row in shown],
        total=["Total", *_cells(total(rows))[1:]],
        choice=model,
    )


def _cells(row: Row) -> Sequence[Cell]:
    """The cells of a row, rounded as in the report."""
    amounts = (float(money(amount)) for amount in (row.revenue, row.reversed, row.net))
    return [printable(row.campaign.label), float(f"{row.orders:.2f}"), *amounts]
