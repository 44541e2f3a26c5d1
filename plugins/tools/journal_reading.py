"""Reads journals: the records between two positions, those of several partitions by time, and the cursors."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.delivery.sink_consumer import PREFIX

from .sinks.moments import first_since

__all__ = ["RecordReader", "pages_of", "positions_of", "records_of", "sinks_of"]

_PAGE = 500


async def pages_of(journal: Journal, after: int, upto: int) -> AsyncIterator[Sequence[Record]]:
    """The records after a position and up to another one, as far as retention has left them."""
    while after < upto and (read := await journal.read(after, min(_PAGE, upto - after))):
        if page := [record for record in read if record.position <= upto]:
            yield page
        after = read[-1].position


async def records_of(journal: Journal, after: int, upto: int) -> AsyncIterator[Record]:
    """The records of `pages_of`, one after the other."""
    async for page in pages_of(journal, after, upto):
        for record in page:
            yield record


async def positions_of(journal: Journal) -> dict[str, int]:
    """The positions of all consumers ever seen, by name."""
    return {cursor.name: cursor.position for cursor in await journal.cursors()}


async def sinks_of(journal: Journal) -> list[str]:
    """The sinks with a cursor in the journal. A sink without a cursor has received nothing."""
    return [name.removeprefix(PREFIX) for name in await positions_of(journal) if name.startswith(PREFIX)]


class RecordReader:
    """`missing` has the partitions that cannot be read. The others are read nevertheless.

    It begins with the oldest records, or with those received at `since`, in milliseconds.
    """

    def __init__(self, partitions: Sequence[Partition], since: int = 0) -> None:
        self.missing = MissingPartitions(partitions)
        self._since = since
        self._sources = [_Source(partition) for partition in partitions]

    def again(self) -> RecordReader:
        """A reader that begins with the oldest records."""
        return RecordReader([source.partition for source in self._sources])

    async def pages(self) -> AsyncIterator[Sequence[Record]]:
        """The records after those of earlier calls, up to the newest ones at the time of the call.

        Within a partition, the records keep the order of the journal.
        """
        for source in self._sources:
            with self.missing.tolerating(source.partition):
                await source.reach_end(self._since)
        while there := await self._sources_with_page():
            # The journal whose page ends first may go on with earlier records than those of the other pages.
            until = min(max(record.at for record in source.page) for source in there)
            taken = [source.take(until) for source in there]
            yield taken[0] if len(taken) == 1 else [*heapq.merge(*taken, key=attrgetter("at"))]

    async def _sources_with_page(self) -> list[_Source]:
        for source in self._sources:
            if not source.page:
                with self.missing.tolerating(source.partition):
                    await source.fill()
        return [source for source in self._sources if source.page]

    async def has_lost_records(self) -> bool:
        """Whether a journal ends before the last record that was read."""
        for source in self._sources:
            if await source.partition.journal.last() < source.position:
                return True
        return False


class _Source:
    """A journal that is read in order."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.position = 0
        """The position of the last record that was read."""
        self.last = 0
        """The position at which reading ends."""
        self.page: Sequence[Record] = ()
        """Records that were read and not taken yet."""

    async def reach_end(self, since: int) -> None:
        """Read up to the present end, from now on. The first time, skip the records received before `since`."""
        journal = self.partition.journal
        if since and not self.last:
            self.position = await first_since(journal, await journal.extent(), since) - 1
        self.last = await journal.last()

    async def fill(self) -> None:
        if self.position >= self.last:
            return
        read = await self.partition.journal.read(self.position, _PAGE)
        self.page = [record for record in read if record.position <= self.last]
        # Without records, retention has removed them.
        self.position = self.page[-1].position if self.page else self.last

    def take(self, until: int) -> Sequence[Record]:
        """The next records, up to the first one after that time."""
        page = self.page
        count = next((index for index, record in enumerate(page) if record.at > until), len(page))
        self.page = page[count:]
        return page[:count]
