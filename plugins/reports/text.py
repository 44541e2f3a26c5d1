"""Formats of the report: a table with bars, CSV and JSON lines."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from io import StringIO
from itertools import groupby
from typing import Any, NamedTuple

from ingestd.support.terminal import aligned, cut, display_width, printable

from ..attribution.campaigns import TOTAL
from ..attribution.models import Model
from ..attribution.report import Row, money, number, total
from .report import Line

__all__ = ["Form", "csv_lines", "members", "table"]

_BAR, _SHORT_BAR = 24, 8
_CURRENCY = 3  # columns for the currency above the bars
_NAME, _LONG_NAME = 12, 24  # columns that a row's name always gets, and gets before columns that are less wanted
_WANTED = 4
_JOINERS = "\u200c\u200d"  # Persian and Indian scripts need them
_FORMULA = re.compile(rf"[\s{_JOINERS}]*[=+\-@＝＋－＠]")  # noqa: RUF001 - spreadsheets treat wide characters alike
_HEADS: Mapping[tuple[str, ...], str] = {("source", "medium", "name"): "campaign"}
_ZERO = Decimal(0)


class Form(NamedTuple):
    """What the rows of a report have beside their sums."""

    columns: tuple[str, ...]
    label: Callable[[int], str | None] = lambda number: None
    """The period of a number. None if the report has one period."""
    every: bool = False
    compare: bool = False
    models: Sequence[Model] = ()
    """The models beside each other, if there are several."""
    visitors: int | None = None
    """The visitors of all rows. One may be in several rows."""


def csv_lines(lines: Sequence[Line], form: Form) -> Iterator[str]:
    """A header and a line for each row (RFC 4180), without line ends. No cell is a formula in a spreadsheet."""
    nothing = Row(TOTAL, None, _ZERO, _ZERO, _ZERO, _ZERO)
    yield _csv_line([*members(Line(0, nothing, nothing, [nothing] * len(form.models)), form)])
    for line in lines:
        cells = members(line, form).values()
        yield _csv_line([_harmless(cell or "") if isinstance(cell, str | None) else cell for cell in cells])


def members(line: Line, form: Form) -> dict[str, Any]:
    """The columns. `kind` tells a direct order from a campaign with a source of that name."""
    row = line.row
    fields = row.campaign.fields or (row.campaign.label,)
    found: dict[str, Any] = {"period": form.label(line.number)} if form.every else {}
    found |= {**dict.fromkeys(form.columns), **dict(zip(form.columns, fields, strict=False))}
    found |= {"currency": row.currency}
    found |= {name: number(getattr(row, name)) for name in ("orders", "revenue", "reversed", "net")}
    found |= {"kind": row.campaign.kind, "sessions": row.sessions, "visitors": row.visitors}
    found |= {"average": _number(_average(row)), "conversion": _share(_conversion(row))}
    found |= {"new": _number(row.new), "returning": _number(row.returning), "assisted": row.assisted}
    found |= {"cost": _number(row.cost), "clicks": row.clicks, "impressions": row.impressions}
    found |= {"roas": _share(_roas(row)), "cost_per_order": _number(_cost_per_order(row))}
    if form.compare and line.before is not None:
        before = line.before
        found |= {"sessions_before": before.sessions, "orders_before": number(before.orders)}
        found |= {"net_before": number(before.net), "net_change": _share(_change(row, before))}
        found |= {"cost_before": _number(before.cost)}
    for model, by_model in zip(form.models, line.by_model, strict=False):
        found |= {f"orders_{model}": number(by_model.orders), f"net_{model}": number(by_model.net)}
    return found


def _average(row: Row) -> Decimal | None:
    """The net revenue of an order."""
    return row.exact_net / row.exact_orders if row.exact_orders and row.exact_net is not None else None


def _conversion(row: Row) -> Decimal | None:
    """The orders of a session."""
    return row.converted / row.sessions if row.sessions and row.converted is not None else None


def _roas(row: Row) -> Decimal | None:
    """The net revenue of what was spent."""
    return row.net / row.cost if row.cost else None


def _cost_per_order(row: Row) -> Decimal | None:
    return row.cost / row.exact_orders if row.cost is not None and row.exact_orders else None


def _change(row: Row, before: Row) -> Decimal | None:
    return (row.net - before.net) / abs(before.net) if before.net else None


def _number(amount: Decimal | None) -> int | float | None:
    return None if amount is None else number(amount)


def _share(amount: Decimal | None) -> float | None:
    return None if amount is None else float(round(amount, 4))


def _csv_line(cells: Sequence[Any]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _harmless(text: str) -> str:
    """A text that a spreadsheet does not run. Callers choose it, so an apostrophe before a formula disables it."""
    text = "".join(each if each in _JOINERS or unicodedata.category(each) == "Zs" else printable(each) for each in text)
    return f"'{text}" if _FORMULA.match(text) else text


class _Column(NamedTuple):
    head: str
    cell: Callable[[Line], str]
    left_out: int
    """Columns of a high number are left out first, if the terminal is narrow, and beyond `_WANTED` for long names."""


def _columns(lines: Sequence[Line], form: Form) -> Iterator[_Column]:
    rows = [line.row for line in lines]
    decimals = 0 if all(row.orders == row.orders.to_integral_value() for row in rows) else 2
    if any(row.sessions is not None for row in rows):
        yield _Column("sessions", lambda line: _text(line.row.sessions), 3)
        yield _Column("visitors", lambda line: _text(line.row.visitors), 8)
    yield _Column("orders", lambda line: f"{line.row.orders:.{decimals}f}", 1)
    yield _Column("revenue", lambda line: money(line.row.revenue), 5)
    yield _Column("reversed", lambda line: money(line.row.reversed), 6)
    yield _Column("net", lambda line: money(line.row.net), 0)
    if form.compare:
        yield _Column("before", lambda line: money(line.before.net) if line.before else "", 1)
        yield _Column("change", lambda line: _percent(_change(line.row, line.before) if line.before else None, "+"), 1)
    for index, model in enumerate(form.models):
        yield _Column(model.split("_")[0], lambda line, index=index: money(line.by_model[index].net), 2)  # type: ignore[misc]
    if any(row.cost is not None for row in rows):
        yield _Column("cost", lambda line: _money(line.row.cost), 1)
        yield _Column("ROAS", lambda line: _money(_roas(line.row)), 2)
        yield _Column("per order", lambda line: _money(_cost_per_order(line.row)), 5)
    yield _Column("average", lambda line: _money(_average(line.row)), 7)
    if any(row.sessions is not None for row in rows):
        yield _Column("conv.", lambda line: _percent(_conversion(line.row)), 4)
    if any(row.new is not None for row in rows):
        yield _Column("new", lambda line: f"{line.row.new:.{decimals}f}", 9)
        yield _Column("returning", lambda line: f"{line.row.returning:.{decimals}f}", 10)
    if any(row.assisted is not None for row in rows):
        yield _Column("assisted", lambda line: _text(line.row.assisted), 11)


def _money(amount: Decimal | None) -> str:
    return "" if amount is None else money(amount)


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _percent(share: Decimal | None, sign: str = "") -> str:
    return "" if share is None else f"{100 * share:{sign}.1f} %"


def table(lines: Sequence[Line], form: Form, width: int) -> Iterator[str]:
    """A table for each currency, with its total. No line is longer than `width`, unless `width` is very small."""
    blocks = [[*block] for _, block in groupby(sorted(lines, key=_currency), key=_currency)]
    shown = [[*block, _total(block, form)] for block in blocks]
    columns = [*_columns(lines, form)]
    cells = {column: [column.cell(line) for block in shown for line in block] for column in columns}
    widths = {column: max(len(column.head), *map(len, texts)) for column, texts in cells.items()}
    head = _HEADS.get(form.columns, " / ".join(form.columns))
    names = max(display_width(name) for name in (head, "total", *(_name(line, form) for line in lines)))
    while len(widths) > 1:
        least = max(widths, key=lambda column: column.left_out)
        room = width - _taken(widths.values()) - 2 - _SHORT_BAR
        if room >= max(_NAME, min(names, _LONG_NAME if least.left_out > _WANTED else 0)):
            break
        del widths[least]
    numeric = range(1, 1 + len(widths))
    free = width - _taken(widths.values()) - 2
    name_width = min(names, max(_NAME, free - _BAR, min(_LONG_NAME, free - _SHORT_BAR)))
    room = free - name_width
    row_of = iter(zip(*(cells[column] for column in widths), strict=True))
    for block in shown:
        currency = cut(printable(block[0].row.currency or "no currency"), max(room, _CURRENCY))
        heads = [cut(head, name_width), *(column.head for column in widths)]
        yield f"{aligned(heads, [name_width, *widths.values()], right=numeric)}  {currency}"
        *parts, all_ = block
        most = max((_length(line.row, all_.row) for line in parts), default=_ZERO)
        for line in block:
            name = "total" if line is all_ else cut(_name(line, form), name_width)
            share = _length(line.row, all_.row) / most if most and line is not all_ else _ZERO
            bar = "█" * round(min(_BAR, room) * share)
            yield f"{aligned([name, *next(row_of)], [name_width, *widths.values()], right=numeric)}  {bar}".rstrip()
        if block is not shown[-1]:
            yield ""


def _currency(line: Line) -> str:
    return line.row.currency or ""


def _total(lines: Sequence[Line], form: Form) -> Line:
    row = total([line.row for line in lines])
    before = total([line.before for line in lines if line.before is not None]) if form.compare else None
    by_model = [total(rows) for rows in zip(*(line.by_model for line in lines), strict=True)]
    return Line(0, row._replace(visitors=None if row.sessions is None else form.visitors), before, by_model)


def _name(line: Line, form: Form) -> str:
    period = form.label(line.number) if form.every else None
    return printable(line.row.campaign.label if period is None else f"{period}  {line.row.campaign.label}")


def _taken(widths: Iterable[int]) -> int:
    return sum(width + 2 for width in widths)


def _length(row: Row, all_: Row) -> Decimal:
    """The length of a row's bar: the net revenue, or the orders if the total revenue is 0."""
    return max(_ZERO, row.net if all_.revenue else row.orders)
