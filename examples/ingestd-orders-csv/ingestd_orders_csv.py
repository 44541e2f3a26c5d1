"""The sink `orders_csv`: completed orders for the bookkeeping, one CSV file a day, one line an order.

Two records make a line. The event `Order Completed` has the amounts, and the attribution that follows has the
campaign. The id of the event's record connects them. Every write replaces the whole file durably, so a file is never
torn. A repeated record changes nothing. After a crash the files are all that the sink knows.
"""

from __future__ import annotations

import asyncio
import csv
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Options
from ingestd.api.sink import Sink

AMOUNTS = ("currency", "revenue", "total", "tax", "shipping")
COLUMNS = ("id", "order_id", "time", *AMOUNTS, "model", "source", "medium", "campaign")
LONGEST = 32_767  # characters in a cell of a spreadsheet
FORMULA = re.compile(r'(^|[,;"])\s*(?=[-=+@\uff0d\uff1d\uff0b\uff20])')
"""The start of a formula, also in a file opened with a wrong separator. Some programs accept the wide signs too."""

Line = dict[str, str]


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("orders_csv", OrdersCsvSink)


class OrdersCsvOptions(Options):
    folder: Path
    timezone: str = "UTC"
    """The time zone of the days in the file names."""


class OrdersCsvSink(Sink):
    Options = OrdersCsvOptions

    def __init__(self, name: str, options: OrdersCsvOptions) -> None:
        super().__init__(name, options)
        self._folder = options.folder
        try:
            self._zone = ZoneInfo(options.timezone)
        except (OSError, ValueError):
            raise ConfigError(
                f'sinks.{name}.timezone: expected a name such as "Europe/Berlin", got {options.timezone!r}'
            ) from None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        # One thread: a cancelled write continues in it, and must end before the next write begins.
        self._thread = self._thread or ThreadPoolExecutor(1)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._make_folder)

    async def write(self, batch: Sequence[Record]) -> None:
        days: dict[str, list[Line]] = {}
        too_long = {}
        for index, record in enumerate(batch):
            line = self.line_of(record)
            if line is None:
                continue
            if max(map(len, line.values())) > LONGEST:
                too_long[index] = f"a cell is longer than {LONGEST} characters"
            days.setdefault(line["time"][:10], []).append(line)
        if too_long:
            raise SinkReject(too_long)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._add, days)

    async def check(self) -> None:
        place = self._folder
        while not place.exists():
            place = place.parent
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(f"{place} is not writable")

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)

    def line_of(self, record: Record) -> Line | None:
        """The cells of a record by column; None if the record is not about an order."""
        value = record.decode()
        if record.type == "event" and value["key"] == "Order Completed":
            data = value["data"]
            cells = {"id": value["id"], "time": self._time(value["timestamp"]), "order_id": data.get("order_id")}
        elif record.type == "attribution":
            data, touch = value["value"], value["touchpoint"] or {}  # without a touchpoint the order was direct
            cells = {"id": value["orderEventId"], "time": self._time(value["orderAt"]), "order_id": value["orderId"]}
            cells |= {"model": value["model"], "source": touch.get("source"), "medium": touch.get("medium")}
            cells["campaign"] = touch.get("name")
        else:
            return None
        # Only the known columns: callers choose the content of `data`.
        cells |= {column: data.get(column) for column in AMOUNTS}
        return {column: _cell(cells.get(column)) for column in COLUMNS}

    def _time(self, timestamp: str) -> str:
        return datetime.fromisoformat(timestamp).astimezone(self._zone).isoformat(timespec="seconds")

    def _add(self, days: dict[str, list[Line]]) -> None:
        for day, lines in days.items():
            path = self._folder / f"orders-{day}.csv"
            before = _read(path)
            after = dict(before)
            for line in lines:
                known = after.get(line["id"], {})
                after[line["id"]] = {column: known.get(column) or cell for column, cell in line.items()}
            if after != before:
                _replace(path, after)

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        _sync(self._folder.parent)


def _read(path: Path) -> dict[str, Line]:
    """The lines of a file by id, in the order of the file."""
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first, *rest = csv.reader(file)
            if tuple(first) != COLUMNS:
                raise ValueError("it has other columns")
            return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rest}
    except (ValueError, csv.Error) as error:
        # Nothing is lost: the batch is retried until an operator has moved the file away.
        raise SinkRetry(f"{path} was changed by another program, {error}; move it away", after=30) from error


def _replace(path: Path, lines: dict[str, Line]) -> None:
    """Replace the file, and return when the new one is on the disk. Until then the old file is there."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8-sig", newline="") as file:  # spreadsheets recognise UTF-8 by this mark
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(line.values() for line in lines.values())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cell(value: Any) -> str:
    """Text that a spreadsheet shows unchanged: numbers stay numbers, and no text of a caller is a formula."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = "".join(each if each.isprintable() else " " for each in str(value)).strip()
    return FORMULA.sub(r"\1'", text)
