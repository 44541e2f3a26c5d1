"""Reads the next records of the journal while a consumer processes the records before them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ingestd.api.events import Record
from ingestd.api.journal import Journal

__all__ = ["ReadAhead"]

_PARTS = 2


class _Part(NamedTuple):
    """A read in progress of the records after a position."""

    after: int
    reading: asyncio.Task[Sequence[Record]]


class _Rest(NamedTuple):
    """Records that were read, but not used yet. They follow a position."""

    after: int
    records: Sequence[Record]


class ReadAhead:
    """Reads a journal in order, in parts of at most `limit` records. It reads two parts ahead if there are more."""

    def __init__(self, journal: Journal, limit: int) -> None:
        self._journal = journal
        self._limit = limit
        self._parts: deque[_Part] = deque()
        self._rest = _Rest(0, ())

    async def read(self, after: int, *, removed: int) -> Sequence[Record]:
        """The next records after a position. Parts that were read before the removal up to `removed` are read again."""
        rest, self._rest = self._rest, _Rest(0, ())
        if rest.records and rest.after == after >= removed:
            return [*rest.records, *await self._read_part(rest.records[-1].position, removed=removed)]
        return await self._read_part(after, removed=removed)

    def put_back(self, after: int, records: Sequence[Record]) -> None:
        """Put the last records of a read back. The next read begins with them, and they follow the position `after`."""
        self._rest = _Rest(after, records)

    async def _read_part(self, after: int, *, removed: int) -> Sequence[Record]:
        records: Sequence[Record] = ()
        if self._parts and self._parts[0].after == after >= removed:
            records = await self._parts.popleft().reading
        if not records:  # there was nothing to read ahead yet
            await self.forget()
            records = await self._journal.read(after, self._limit)
        if self._parts:
            self._read_on(self._parts[-1])
        else:
            self._begin(records)
        return records

    async def peek(self, *, removed: int) -> Sequence[Record]:
        """The records that `read` will probably return next. Empty if their read has not begun or has failed."""
        if self._rest.records or not self._parts or self._parts[0].after < removed:
            return ()
        reading = self._parts[0].reading
        if not reading.done():
            await asyncio.wait([reading])
        return reading.result() if _succeeded(reading) else ()

    async def forget(self) -> None:
        self._rest = _Rest(0, ())
        parts, self._parts = self._parts, deque()
        for part in parts:
            part.reading.cancel()
        if parts:
            await asyncio.wait([part.reading for part in parts])

    def _begin(self, records: Sequence[Record]) -> None:
        """Begin to read the records after these, unless these were the last ones."""
        if len(records) == self._limit:
            after = records[-1].position
            part = _Part(after, asyncio.create_task(_read(self._journal, after, self._limit)))
            self._parts.append(part)
            part.reading.add_done_callback(lambda _: self._read_on(part))

    def _read_on(self, part: _Part) -> None:
        """Begin the next part if this part is complete, it is the last one, and fewer than two are ahead."""
        if _succeeded(part.reading) and self._parts and self._parts[-1] is part and len(self._parts) < _PARTS:
            self._begin(part.reading.result())


def _succeeded(reading: asyncio.Task[Sequence[Record]]) -> bool:
    """Whether a read has succeeded. Looking at the exception here also keeps asyncio from logging it as unretrieved.

    `read` raises the exception of a failed part.
    """
    return reading.done() and not reading.cancelled() and reading.exception() is None


async def _read(journal: Journal, after: int, limit: int) -> Sequence[Record]:
    return await journal.read(after, limit)
