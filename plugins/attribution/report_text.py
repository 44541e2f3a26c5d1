"""Formats of the report: a table with bars, CSV and JSON lines."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from io import StringIO
from itertools import groupby
from typing import Any

from ingestd.support.terminal import aligned, cut, display_width, printable

from .report import BY, Report, Row, number

__all__ = ["csv_lines", "members", "money", "table"]

_BAR = 24
_CURRENCY = 3  # columns for the currency above the bars
_NAME = 12  # columns that a campaign's name always gets; columns of numbers are left out for it
_LARGE = Decimal(10) ** 12
_JOINERS = "\u200c\u200d"  # Persian and Indian scripts need them
_FORMULA = re.compile(rf"[\s{_JOINERS}]*[=+\-@＝＋－＠]")  # noqa: RUF001 - spreadsheets treat wide characters alike


def csv_lines(rows: Sequence[Row], by: str) -> Iterator[str]:
    """A header and a line for each row (RFC 4180), without line ends. No cell is a formula in a spreadsheet."""
    yield _csv_line([*BY[by], *Row._fields[1:], "kind"])
    for row in rows:
        cells = members(row, by).values()
        yield _csv_line([_harmless(cell or "") if isinstance(cell, str | None) else cell for cell in cells])


def members(row: Row, by: str) -> dict[str, Any]:
    """The columns. `kind` comes last: it tells a direct order from a campaign with a source of that name."""
    names, fields = BY[by], row.campaign.fields or (row.campaign.label,)
    numbers = {name: number(getattr(row, name)) for name in Row._fields[2:]}
    return {
        **dict.fromkeys(names), **dict(zip(names, fields, strict=False)),
        "currency": row.currency, **numbers, "kind": row.campaign.kind,
    }  # fmt: skip


def _csv_line(cells: Sequence[Any]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _harmless(text: str) -> str:
    """A text that a spreadsheet does not run. Callers choose it, so an apostrophe before a formula disables it."""
    text = "".join(each if each in _JOINERS or unicodedata.category(each) == "Zs" else printable(each) for each in text)
    return f"'{text}" if _FORMULA.match(text) else text


def table(rows: Sequence[Row], by: str, width: int) -> Iterator[str]:
    """A table for each currency, with its total. No line is longer than `width`, unless `width` is very small."""
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
    names = max(display_width(name) for name in (by, "total", *(printable(row.campaign.label) for row in rows)))
    name_width = min(names, max(_NAME, width - _taken(widths) - 2 - _BAR))
    room = width - name_width - _taken(widths) - 2
    bar_width = min(_BAR, room)
    for block, block_cells in zip(shown, cells, strict=True):
        currency = cut(printable(block[0].currency or "no currency"), max(room, _CURRENCY))
        yield f"{aligned([by, *heads], [name_width, *widths], right=numeric)}  {currency}"
        most = max((_length(row, block[-1]) for row in block[:-1]), default=Decimal(0))
        for row, numbers in zip(block, block_cells, strict=True):
            name = cut(printable(row.campaign.label), name_width)
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
    """The amount with two decimals, or in exponent notation from 10^12 on."""
    return f"{amount:z.2f}" if abs(amount) < _LARGE else f"{amount:.2e}"


def _all_whole(rows: Sequence[Row]) -> bool:
    return all(row.orders == row.orders.to_integral_value() for row in rows)


def _length(row: Row, total: Row) -> Decimal:
    """The length of a row's bar: the net revenue, or the orders if the total revenue is 0."""
    return max(Decimal(0), row.net if total.revenue else row.orders)
