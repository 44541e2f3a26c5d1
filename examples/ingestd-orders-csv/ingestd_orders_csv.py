"""The sink `orders_csv`: completed orders for the bookkeeping, one CSV file a day, one line an order.

Two records make a line: the event `Order Completed` brings the amounts, and the attribution that follows it
the campaign. They find each other by the id of the event's record. A file is replaced as a whole, durably, with what
it held and what is new, so it is never torn, and a record that comes again changes nothing: what is known after a
crash is what the files say.
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
LONGEST = 32_767  # characters a cell of a spreadsheet holds
FORMULA = re.compile(r'(^|[,;"])\s*(?=[-=+@\uff0d\uff1d\uff0b\uff20])')
"""Where one begins, also in a file that is opened with the wrong separator; some take the wide forms for the others."""

Line = dict[str, str]


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("orders_csv", OrdersCsvSink)


class OrdersCsvOptions(Options):
    folder: Path
    timezone: str = "UTC"
    """By whose midnight the days of the files go."""


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
        # One thread: a write that was cancelled goes on in it, and must be over before the next one begins.
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
            raise PermissionError(f"{place} cannot be written to")

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)

    def line_of(self, record: Record) -> Line | None:
        """What a record says of an order, by column; None if it says nothing."""
        value = record.decode()
        if record.type == "event" and value["key"] == "Order Completed":
            data = value["data"]
            cells = {"id": value["id"], "time": self._time(value["timestamp"]), "order_id": data.get("order_id")}
        elif record.type == "attribution":
            data, touch = value["value"], value["touchpoint"] or {}  # none: the order was direct
            cells = {"id": value["orderEventId"], "time": self._time(value["orderAt"]), "order_id": value["orderId"]}
            cells |= {"model": value["model"], "source": touch.get("source"), "medium": touch.get("medium")}
            cells["campaign"] = touch.get("name")
        else:
            return None
        # By name: callers may send what they like in `data`.
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
    """The lines of a file by their ids, in its order."""
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first, *rest = csv.reader(file)
            if tuple(first) != COLUMNS:
                raise ValueError("its columns are others")
            return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rest}
    except (ValueError, csv.Error) as error:
        # Nothing of it is lost: the batch comes again until somebody has moved the file away.
        raise SinkRetry(f"{path} is not as it was written, {error}; move it away", after=30) from error


def _replace(path: Path, lines: dict[str, Line]) -> None:
    """Returns when the file is on the disk; until then there is the one before."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8-sig", newline="") as file:  # spreadsheets know UTF-8 by its mark
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
    """Text that a spreadsheet shows as it is: numbers stay numbers, and nothing a caller sent is a formula."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = "".join(each if each.isprintable() else " " for each in str(value)).strip()
    return FORMULA.sub(r"\1'", text)
