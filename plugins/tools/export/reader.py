"""Reads the records of one or several journals, merged by the time of their receipt."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record

__all__ = ["RecordReader"]

_PAGE = 500


class RecordReader:
    """`missing` has the partitions that cannot be read. The others are read nevertheless."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.missing = MissingPartitions(partitions)
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
                source.last = await source.partition.journal.last()
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
