"""Rows of records, for sinks with tables: the columns of a record, and the search for rows that a server refuses.

Besides, parts of a batch that are sent together, and digests of what a destination has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec

from ingestd.api.errors import SinkFailure
from ingestd.api.events import Record
from ingestd.api.sink import Digest
from ingestd.support.pace import Pace
from ingestd.support.record_head import NO_MEMBER, members_reader

__all__ = ["Columns", "DataRefused", "digests_of", "make_rows", "parts", "read", "read_columns", "sift"]

_SLICE = 0.002  # seconds of work after which other tasks get a turn
_SIFTING = 1.0  # seconds after which a search ends with the faulty records found so far; the others come again

Row = TypeVar("Row")
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class DataRefused(SinkFailure):
    """The server refuses a row. `row` is its index among the rows that were sent, if the server says so."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class Columns(msgspec.Struct, rename="camel", gc=False):
    """The members of a record that have a separate column. Any other value than expected is only in `record`."""

    id: str
    tenant: str | None = None
    key: str | None = None
    timestamp: _Time | None = None
    order_at: _Time | None = None
    """The time of the order of a derived record, which has no `timestamp`."""
    anonymous_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    data: msgspec.Raw = NO_MEMBER
    context: msgspec.Raw = NO_MEMBER
    mark: msgspec.Raw = msgspec.field(name="import", default=NO_MEMBER)
    decided_at: msgspec.Raw = NO_MEMBER
    """Only imported records have a mark, and only derived ones this. To look for them here is faster than
    `Record.received_at` for each record."""

    @property
    def time(self) -> datetime | None:
        return self.timestamp or self.order_at

    def received_at(self, record: Record) -> int:
        return record.received_at() if self.mark or self.decided_at else record.at


read_columns = members_reader(Columns)


def read(record: Record) -> Columns:
    """Raises what `make_rows` takes for the fault of a record, also for a body that is not UTF-8."""
    if not record.body.isascii():
        record.body.decode()  # the members that are not decoded may be invalid
    return read_columns(record.body)


async def make_rows(batch: Sequence[Record], row_of: Callable[[Record], Row]) -> tuple[dict[int, Row], dict[int, str]]:
    """The row of each record by its index, and the reason for each record that cannot have a row."""
    rows: dict[int, Row] = {}
    refused: dict[int, str] = {}
    pace = Pace(_SLICE)
    for index, record in enumerate(batch):
        if pace.is_over():
            await pace.pause()
        try:
            rows[index] = row_of(record)
        except RecursionError:
            refused[index] = "is nested too deeply"
        except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
            refused[index] = f"cannot be read: {error}"
    return rows, refused


async def sift(
    rows: Mapping[int, Row], store: Callable[[Sequence[Row]], Awaitable[None]]
) -> tuple[dict[int, str], bool]:
    """Store all rows that the server takes, by repeated halving. `store` raises `DataRefused`.

    Returns the reason for each refused row by its index, and whether all the others are stored.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + _SIFTING
    refused: dict[int, str] = {}
    parts = [[*rows]]
    while parts and not (refused and clock() > until):
        part = parts.pop()
        try:
            await store([rows[index] for index in part])
        except DataRefused as error:
            if len(part) == 1:
                refused[part[0]] = str(error)
            elif error.row is not None and error.row < len(part):
                named = error.row  # alone, in case that another row is meant
                parts += [[*part[:named], *part[named + 1 :]], part[named : named + 1]]
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    return refused, not parts


def digests_of(received: Iterable[tuple[str, int]], step: int) -> dict[int, Digest]:
    """What `Sink.digests` returns, of the id and the time of each record."""
    found: dict[int, Digest] = {}
    for id_, at in received:
        count, total = found.get(at // step, (0, 0))
        found[at // step] = Digest(count + 1, (total + Digest.number_of(id_)) % (1 << 64))
    return found


def parts(items: Sequence[Row], size: Callable[[Row], int], most: int) -> Iterator[Sequence[Row]]:
    """The items in parts of at most so many bytes. A larger item is a part of its own."""
    start, total = 0, 0
    for index, item in enumerate(items):
        of_item = size(item)
        if index > start and total + of_item > most:
            yield items[start:index]
            start, total = index, 0
        total += of_item
    if items:
        yield items[start:]
