"""Reads a CSV file of costs. Each fault is told with the file and the line."""

from __future__ import annotations

import csv
import re
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from ingestd.api.errors import CommandError
from ingestd.support.names import hint
from ingestd.support.terminal import printable

from ..attribution.amounts import MAX_AMOUNT, currency_code
from ..attribution.touches import text_of
from .costs import Cost

__all__ = ["COLUMNS", "CostFile", "read_cost_file"]

COLUMNS = ("day", "source", "medium", "campaign", "currency", "cost", "clicks", "impressions")
_NEEDED = ("day", "source", "currency", "cost")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AMOUNT = re.compile(r"\d{1,13}(?:\.\d{1,6})?", re.ASCII)
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_MARKS = dict.fromkeys((BOM_UTF16_LE, BOM_UTF16_BE), "utf-16")
_SEPARATORS = ",;\t"
_LONGEST = 1 << 20  # characters of a field that the reader takes; a longer one is a fault of a line
_MOST_FAULTS = 20


class CostFile(NamedTuple):
    costs: Mapping[date, Sequence[Cost]]
    repeated: int
    """The number of lines that replace an earlier line of the file."""


def read_cost_file(path: Path, *, oldest: date, newest: date) -> CostFile:
    """The costs by day. Days must be from `oldest` to `newest`. Prints the first faults, and raises `CommandError`."""
    faults: list[str] = []
    costs: dict[date, dict[tuple[str | None, ...], Cost]] = {}
    repeated = 0
    csv.field_size_limit(_LONGEST)
    try:
        with path.open("rb") as raw, TextIOWrapper(raw, _MARKS.get(raw.peek(2)[:2], "utf-8-sig"), newline="") as file:
            for number, line in _lines(path, file):
                try:
                    day, cost = _cost(line, oldest, newest)
                except ValueError as error:
                    faults.append(f"{path}:{number}: {error}")
                    continue
                repeated += cost.key in costs.setdefault(day, {})
                costs[day][cost.key] = cost
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except UnicodeError:
        raise CommandError(f"{path}: expected UTF-8, or UTF-16 as Excel writes it") from None
    if faults:
        sys.stderr.writelines(f"{printable(fault)}\n" for fault in faults[:_MOST_FAULTS])
        raise CommandError(f"{path}: {len(faults)} faulty lines, so nothing was imported")
    return CostFile({day: [*some.values()] for day, some in costs.items()}, repeated)


def _lines(path: Path, file: Iterator[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The lines with their numbers, by the names of the header. Commas, semicolons or tabs separate them."""
    number, head = next(((number, line) for number, line in enumerate(file, 1) if line.strip()), (1, ""))
    separator = max(_SEPARATORS, key=head.count)
    names = [each.strip().strip('"').strip().lower() for each in head.split(separator)]
    if not {*names} & {*COLUMNS}:
        raise CommandError(f"{path}:{number}: expected a header such as {','.join(COLUMNS)}, got {head.strip()[:80]!r}")
    for name in names:
        if name not in COLUMNS:
            raise CommandError(f"{path}:{number}: there is no column {name!r}; {hint(name, COLUMNS)}")
    if missing := [name for name in _NEEDED if name not in names]:
        raise CommandError(f"{path}:{number}: the header lacks {', '.join(missing)}")
    if len({*names}) < len(names):
        raise CommandError(f"{path}:{number}: the header has a column twice")
    reader = csv.reader(file, delimiter=separator, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield number + reader.line_num, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}
    except csv.Error as error:
        raise CommandError(f"{path}:{number + reader.line_num}: {error}") from None


def _cost(line: Mapping[str, str], oldest: date, newest: date) -> tuple[date, Cost]:
    if not line:
        raise ValueError("expected as many fields as the header has")
    day_text, currency, amount = (line[name].strip() for name in ("day", "currency", "cost"))
    try:
        day = date.fromisoformat(day_text) if _DAY.fullmatch(day_text) else None
    except ValueError:
        day = None
    if day is None:
        raise ValueError(f"day: expected a date such as 2026-11-01, got {day_text[:50]!r}")
    if not oldest <= day <= newest:
        raise ValueError(f"day: expected {oldest} to {newest}, got {day_text}")
    if (source := text_of(line["source"])) is None:
        raise ValueError("source: expected a text")
    if (code := currency_code(currency)) is None:
        raise ValueError("currency: expected a currency such as EUR")
    if not _AMOUNT.fullmatch(amount) or Decimal(amount) > MAX_AMOUNT:
        raise ValueError(f"cost: expected a number such as 12.50, got {amount[:50]!r}")
    clicks, impressions = (_count(name, line.get(name, "")) for name in ("clicks", "impressions"))
    medium, campaign = (text_of(line.get(name)) for name in ("medium", "campaign"))
    return day, Cost(source, medium, campaign, code, Decimal(amount), clicks, impressions)


def _count(name: str, text: str) -> int | None:
    text = text.strip()
    if text and not _COUNT.fullmatch(text):
        raise ValueError(f"{name}: expected a whole number, got {text[:50]!r}")
    return int(text) if text else None
