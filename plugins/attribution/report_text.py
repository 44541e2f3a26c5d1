"""The report as a table with bars, and as lines of CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from io import StringIO
from itertools import groupby
from typing import Any

from ingestd.api.terminal import aligned, cut, display_width, printable

from .report import Report, Row, number

__all__ = ["csv_lines", "json_lines", "money", "table"]

_BAR = 24
_CURRENCY = 3  # columns of a currency, over the bars
_NAME = 12  # columns of a campaign's name that there is room for, if need be in place of numbers
_LARGE = Decimal(10) ** 12
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets take the wide ones for the same


def json_lines(rows: Sequence[Row]) -> Iterator[str]:
    """An object a line; plain ASCII, so nothing in it can steer a terminal."""
    return (json.dumps(dict(zip(Row._fields, _values(row), strict=True))) for row in rows)


def csv_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A header and a line each (RFC 4180), without their ends; no cell is a formula to a spreadsheet that opens it."""
    yield _csv_line(Row._fields)
    for row in rows:
        campaign, currency, *numbers = _values(row)
        yield _csv_line([_harmless(campaign), _harmless(currency or ""), *numbers])


def _values(row: Row) -> list[Any]:
    return [row.campaign, row.currency, *(number(amount) for amount in row[2:])]


def _csv_line(cells: Sequence[Any]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _harmless(text: str) -> str:
    """Callers chose it: with an apostrophe before it a spreadsheet shows a formula instead of running it."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def table(rows: Sequence[Row], by: str, width: int) -> Iterator[str]:
    """A table for each currency, with its total; no line longer than `width`, unless that is very narrow."""
    blocks = [[*block] for _, block in groupby(rows, key=lambda row: row.currency)]
    shown = [[*block, Report.total(block)] for block in blocks]
    heads = ["orders", "revenue", "reversed", "net"]
    cells = [[_cells(row, whole=_all_whole(rows)) for row in block] for block in shown]
    widths = [max(len(head), *(len(row[i]) for block in cells for row in block)) for i, head in enumerate(heads)]
    for droppable in ("reversed", "revenue", "orders"):
        if _NAME + _taken(widths) + 2 + _CURRENCY > width:
            index = heads.index(droppable)
            del heads[index], widths[index]
            for line in (line for block in cells for line in block):
                del line[index]
    numeric = range(1, 1 + len(heads))
    names = max(display_width(name) for name in (by, "total", *(printable(row.campaign) for row in rows)))
    name_width = min(names, max(_NAME, width - _taken(widths) - 2 - _BAR))
    room = width - name_width - _taken(widths) - 2
    bar_width = min(_BAR, room)
    for block, block_cells in zip(shown, cells, strict=True):
        currency = cut(printable(block[0].currency or "no currency"), max(room, _CURRENCY))
        yield f"{aligned([by, *heads], [name_width, *widths], right=numeric)}  {currency}"
        most = max((_length(row, block[-1]) for row in block[:-1]), default=Decimal(0))
        for row, numbers in zip(block, block_cells, strict=True):
            name = cut(printable(row.campaign), name_width)
            share = _length(row, block[-1]) / most if most and row is not block[-1] else Decimal(0)
            bar = "█" * round(bar_width * share)
            yield f"{aligned([name, *numbers], [name_width, *widths], right=numeric)}  {bar}".rstrip()
        if block is not shown[-1]:
            yield ""


def _taken(widths: Sequence[int]) -> int:
    return sum(width + 2 for width in widths)


def _cells(row: Row, *, whole: bool) -> list[str]:
    orders = f"{row.orders:.0f}" if whole else f"{row.orders:.2f}"
    return [orders, money(row.revenue), money(row.reversed), money(row.net)]


def money(amount: Decimal) -> str:
    """Two digits behind the point; an amount that nobody has, as its power of ten."""
    return f"{amount:z.2f}" if abs(amount) < _LARGE else f"{amount:.2e}"


def _all_whole(rows: Sequence[Row]) -> bool:
    return all(row.orders == row.orders.to_integral_value() for row in rows)


def _length(row: Row, total: Row) -> Decimal:
    """What a bar shows: the revenue that is left or, where no order has a value, the orders."""
    return max(Decimal(0), row.net if total.revenue else row.orders)
