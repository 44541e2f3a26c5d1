"""A search of the journal for one journey. It has limits, and gives way to all other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ingestd.api.events import Record
from ingestd.api.journal import Journal, size_of

__all__ = ["JournalSearch", "Matcher", "SearchLimits"]

_FIRST = 16  # records of the first page, since records may be large
_MOST = 250  # records of a page: comparing them takes a fraction of a millisecond
_PAGE_BYTES = 1 << 20
_FROM_CALLERS = frozenset(["event", "identify"])


class Matcher(Protocol):
    """Chooses records. It may learn from them, for example the visitors of a user."""

    def matches(self, record: Record) -> bool: ...

    def __len__(self) -> int:
        """How much it knows. After it has learned something, it may match records that it has rejected before."""
        ...


class SearchLimits(NamedTuple):
    """The limits of one search, in records and bytes that are read, seconds, and records and bytes that are found."""

    records: int = 200_000
    bytes: int = 256 << 20
    seconds: float = 5.0
    found: int = 2_000
    found_bytes: int = 16 << 20

    def part(self, share: float) -> SearchLimits:
        """Limits for a part of the search."""
        return self._replace(
            records=round(self.records * share), bytes=round(self.bytes * share), seconds=self.seconds * share
        )


class JournalSearch:
    """Collects matching records in `found`, by position. After each page it pauses for as long as the page took."""

    def __init__(self, journal: Journal, limits: SearchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._until = clock() + limits.seconds
        self.found: dict[int, Record] = {}
        self._found_bytes = 0
        self.derived = 0
        """The number of records that it has found and that plugins have derived from others."""
        self.records = 0
        """The number of records that it has read."""
        self.bytes = 0
        self.oldest_at: int | None = None
        """The time of the oldest record that it has read, in milliseconds."""

    @property
    def limit(self) -> str | None:
        """The limit that the search has reached, or None."""
        limits = self._limits
        if self.records >= limits.records:
            return f"{limits.records:,} records"
        if self.bytes >= limits.bytes:
            return f"{limits.bytes >> 20} MiB"
        if len(self.found) >= limits.found or self._found_bytes >= limits.found_bytes:
            return f"{len(self.found):,} records of this journey"
        return f"{limits.seconds:g} seconds" if self._clock() >= self._until else None

    async def forward(self, after: int, last: int, matcher: Matcher, enough: int) -> None:
        """Search from `after` (exclusive) to `last`, until it has found `enough` derived records."""
        page = _FIRST
        while after < last and self.derived < enough and self.limit is None:
            upto = min(last, after + page)
            page = self._next(page, await self._search(after, upto, matcher))
            after = upto

    async def backward(self, before: int, oldest: int, matcher: Matcher) -> int:
        """Search from `before` (exclusive) back to `oldest`. Returns the position of the last record it looked at."""
        page = _FIRST
        while before > oldest and self.limit is None:
            after = max(oldest, before - page) - 1
            known = len(matcher)
            size = await self._search(after, before - 1, matcher)
            if len(matcher) > known:  # it may match earlier records of the page now
                await self._search(after, before - 1, matcher)
            page, before = self._next(page, size), after + 1
        return before

    def _next(self, page: int, size: int) -> int:
        """The number of records of the next page, after a page with this size in bytes."""
        return min(_MOST, 2 * page, max(1, _PAGE_BYTES * page // max(size, 1)))

    async def _search(self, after: int, upto: int, matcher: Matcher) -> int:
        """Search a page. Returns its size. Callers choose sizes, so a page of large records takes several reads."""
        size = 0
        while after < upto and self.limit is None:
            began = self._clock()
            records = [each for each in await self._journal.read(after, upto - after) if each.position <= upto]
            if not records:  # retention has removed them
                break
            for record in reversed(records):
                if record.position not in self.found and matcher.matches(record):
                    self.found[record.position] = record
                    self._found_bytes += size_of(record)
                    self.derived += record.type not in _FROM_CALLERS
            read = sum(map(size_of, records))
            size += read
            self.records += len(records)
            self.bytes += read
            oldest = records[0].at
            self.oldest_at = oldest if self.oldest_at is None else min(self.oldest_at, oldest)
            after = records[-1].position
            await asyncio.sleep(self._clock() - began)
        return size
