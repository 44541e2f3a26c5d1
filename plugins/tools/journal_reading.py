"""Reads journals: the records between two positions, those of several partitions by time, and the cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import heapify, heappop, heapreplace

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.delivery.sink_consumer import PREFIX

from .sinks.moments import first_since

__all__ = ["RecordReader", "merged", "pages_of", "positions_of", "records_of", "sinks_of"]

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


async def merged(streams: Sequence[AsyncIterator[Record]]) -> AsyncIterator[tuple[int, Record]]:
    """The records of several journals by time, each with the index of its journal, in the order of each journal."""
    heads = []
    for index, stream in enumerate(streams):
        if (record := await anext(stream, None)) is not None:
            heads.append((record.at, index, record))
    heapify(heads)
    while heads:
        _, index, record = heads[0]
        yield index, record
        following = await anext(streams[index], None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (following.at, index, following))


class RecordReader:
    """`missing` has the partitions that cannot be read. The others are read nevertheless.

    It begins with the oldest records, or with those received at `since`, in milliseconds.
    """

    def __init__(self, partitions: Sequence[Partition], since: int = 0) -> None:
        self.missing = MissingPartitions(partitions)
        self._partitions = partitions
        self._since = since
        self._positions: dict[str, int] = {}
        """By partition, the position of the last record that was read."""

    def again(self) -> RecordReader:
        """A reader that begins with the oldest records."""
        return RecordReader(self._partitions)

    async def pages(self) -> AsyncIterator[Sequence[Record]]:
        """The records after those of earlier calls, up to the newest ones at the time of the call.

        Within a partition, the records keep the order of the journal.
        """
        page: list[Record] = []
        async for _, record in merged([self._rest_of(each) for each in self._partitions]):
            page.append(record)
            if len(page) == _PAGE:
                yield page
                page = []
        if page:
            yield page

    async def _rest_of(self, partition: Partition) -> AsyncIterator[Record]:
        with self.missing.tolerating(partition):
            journal = partition.journal
            if partition.name not in self._positions:
                begin = await first_since(journal, await journal.extent(), self._since) if self._since else 1
                self._positions[partition.name] = begin - 1
            async for record in records_of(journal, self._positions[partition.name], await journal.last()):
                self._positions[partition.name] = record.position
                yield record

    async def has_lost_records(self) -> bool:
        """Whether a journal ends before the last record that was read."""
        for partition in self._partitions:
            if await partition.journal.last() < self._positions.get(partition.name, 0):
                return True
        return False
