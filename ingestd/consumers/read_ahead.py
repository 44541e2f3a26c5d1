"""What comes next in the journal, read while what comes before it is worked on."""

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
    """The records behind a position, being read."""

    after: int
    reading: asyncio.Task[Sequence[Record]]


class ReadAhead:
    """Reads a journal in order, at most `limit` records at once, and two such parts ahead while there are more."""

    def __init__(self, journal: Journal, limit: int) -> None:
        self._journal = journal
        self._limit = limit
        self._parts: deque[_Part] = deque()

    async def read(self, after: int, *, removed: int) -> Sequence[Record]:
        """What comes behind a position, now. What was read before the records up to `removed` were is read anew."""
        records: Sequence[Record] = ()
        if self._parts and self._parts[0].after == after >= removed:
            records = await self._parts.popleft().reading
        if not records:  # then there were none yet
            await self.forget()
            records = await self._journal.read(after, self._limit)
        if self._parts:
            self._read_on(self._parts[-1])
        else:
            self._begin(records)
        return records

    async def peek(self, *, removed: int) -> Sequence[Record]:
        """What `read` will return next if all goes well; nothing if it has not begun to read that, or failed."""
        if not self._parts or self._parts[0].after < removed:
            return ()
        reading = self._parts[0].reading
        if not reading.done():
            await asyncio.wait([reading])
        return reading.result() if _succeeded(reading) else ()

    async def forget(self) -> None:
        parts, self._parts = self._parts, deque()
        for part in parts:
            part.reading.cancel()
        if parts:
            await asyncio.wait([part.reading for part in parts])

    def _begin(self, records: Sequence[Record]) -> None:
        """Read what comes behind these, unless they were all there was."""
        if len(records) == self._limit:
            after = records[-1].position
            part = _Part(after, asyncio.create_task(_read(self._journal, after, self._limit)))
            self._parts.append(part)
            part.reading.add_done_callback(lambda _: self._read_on(part))

    def _read_on(self, part: _Part) -> None:
        """Begin the next part if this is the last one, has been read, and another is wanted."""
        if _succeeded(part.reading) and self._parts and self._parts[-1] is part and len(self._parts) < _PARTS:
            self._begin(part.reading.result())


def _succeeded(reading: asyncio.Task[Sequence[Record]]) -> bool:
    """Who takes a part that failed is told of it; asking here keeps asyncio from complaining that nobody did."""
    return reading.done() and not reading.cancelled() and reading.exception() is None


async def _read(journal: Journal, after: int, limit: int) -> Sequence[Record]:
    return await journal.read(after, limit)
