"""What operators see of attribution: orders and revenue of the last day by campaign, for each model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from ingestd import times
from ingestd.panels import Cell, Column, Panel, Table
from ingestd.store import Store
from ingestd.terminal import printable

from .hours import OTHERS, Sums, read_day, sum_up
from .models import MODELS, Model

__all__ = ["show"]

_MOST = 12  # campaigns of a currency
_MOST_CURRENCIES = 6


async def show(store: Store, model: Model) -> Panel:
    """`model` is the one that gets the credit."""
    hours = await read_day(store.begin(times.now()))
    return await asyncio.to_thread(_panel, hours, model)  # a busy day takes some milliseconds


def _panel(hours: Sequence[str], model: Model) -> Panel:
    return Panel(
        "Orders and revenue by campaign",
        [*_tables(sum_up(hours))],
        note="Of orders received in the last 24 hours. Refunds are not taken off.",
        choose="Model",
        chosen=model,
    )


def _tables(rows: Sequence[Sums]) -> Iterator[Table]:
    many = len({row.tenant for row in rows if row.tenant}) > 1
    orders: Counter[str] = Counter()
    for row in rows:
        orders[row.currency or ""] += round(sum(row.orders))
    for currency in sorted(each for each, _ in orders.most_common(_MOST_CURRENCIES)):
        some = [row for row in rows if (row.currency or "") == currency]
        for place, model in enumerate(MODELS):
            yield _table(currency, model, [_line(row, place, many=many) for row in some])


def _line(row: Sums, place: int, *, many: bool) -> tuple[str, float, float]:
    name = f"{row.tenant}: {row.campaign}" if many and row.tenant else row.campaign
    return printable(name), round(row.orders[place], 6), round(row.revenue[place], 4)  # thirds and floats


def _table(currency: str, model: Model, lines: Sequence[tuple[str, float, float]]) -> Table:
    ranked = sorted(
        (line for line in lines if line[1]), key=lambda line: (line[0] == OTHERS, -line[2], -line[1], line[0])
    )
    shown: list[Sequence[Cell]] = [*ranked[:_MOST]]
    rest = ranked[_MOST:]
    if rest:
        shown.append((OTHERS, sum(line[1] for line in rest), sum(line[2] for line in rest)))
    whole = all(line[1].is_integer() for line in ranked)
    return Table(
        title=printable(currency) or "No currency",
        columns=[Column("Campaign"), Column("Orders", 0 if whole else 2), Column("Revenue", 2, bar=True)],
        rows=shown,
        total=("Total", sum(line[1] for line in ranked), sum(line[2] for line in ranked)),
        choice=model,
    )
