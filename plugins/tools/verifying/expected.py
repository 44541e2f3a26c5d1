"""The ids that a sink's destination should have, as the journal says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.events import Record
from ingestd.api.imported import is_completed
from ingestd.api.sink import Digest
from ingestd.delivery import SinkConsumer
from ingestd.delivery.transforms import make_filter
from ingestd.support.record_head import read_head

from ..journal_reading import pages_of
from ..sinks.durable import letters_of, read_durable
from ..sinks.moments import first_since
from ..sinks.partitions import named

__all__ = ["HOUR", "Due", "Expected", "Seen", "find_due", "kept_since"]

HOUR = 3_600_000


class Due(NamedTuple):
    """What a sink has been given of a partition. A record of it should be in the destination, with exceptions."""

    partition: Partition
    after: int
    """The position at which the sink began."""
    last: int
    """The position of its cursor."""
    dead: Collection[int]
    """The positions of its dead letters."""


async def find_due(name: str, partition: Partition) -> Due:
    durable = await read_durable(partition.store, partition.journal, name)
    dead = {each.position async for each in letters_of(partition.store, name)}
    began = 0 if durable.progress is None else durable.progress.began
    return Due(partition, began, durable.position or 0, dead)


async def kept_since(dues: Collection[Due]) -> int:
    """The whole second since which the journals have all records now, or 0 if they have lost none."""
    oldest = 0
    for due in dues:
        extent = await due.partition.journal.extent()
        if extent.first > 1:
            # An empty one knows nothing of what was received until now.
            oldest = max(oldest, times.now() if extent.oldest_at is None else extent.oldest_at + 1)
    return -(-oldest // 1000) * 1000


class Seen(NamedTuple):
    """A record of the journal. `expected` tells whether the destination should have it."""

    id: str
    at: int
    """When it was received, in milliseconds."""
    place: str
    """Its position, as `ingestd sinks replay` takes it."""
    expected: bool


class Expected:
    """Reads the journals of all partitions, as often as it is asked to."""

    def __init__(self, dues: Collection[Due], consumer: SinkConsumer, since: int, until: int) -> None:
        self.dues = dues
        self._passes = make_filter(consumer.options.filter)
        transform = consumer.transform
        # Only a plugin's transform may leave a record out.
        self._transform = transform if isinstance(consumer.options.transform, str) else None
        self._since, self._until = since, until
        self._ends: dict[str, int] = {}
        """By partition, the position up to which the journal was read."""
        self.dead = 0
        """Dead letters of that time."""

    async def digests(self) -> dict[int, Digest]:
        """By hour since 1970."""
        found: dict[int, Digest] = {}
        self.dead = 0
        async for each in self.records():
            if each.expected:
                _add(found, each.at // HOUR, Digest(1, Digest.number_of(each.id)))
        return found

    async def records(self) -> AsyncIterator[Seen]:
        """All records received in that time, with those that the destination need not have."""
        for due in self.dues:
            journal = due.partition.journal
            extent = await journal.extent()
            position = await first_since(journal, extent, self._since) - 1
            async for page in pages_of(journal, position, extent.last):
                for each in await self._seen_of(page, due):
                    if self._since <= each.at < self._until:
                        yield each
            self._ends[due.partition.name] = extent.last

    async def newer_ids(self) -> set[str]:
        """The ids of records that were stored after the journal was last read."""
        found: set[str] = set()
        for due in self.dues:
            journal = due.partition.journal
            async for page in pages_of(journal, self._ends[due.partition.name], await journal.last()):
                found.update(each.id for each in await self._seen_of(page, due))
        return found

    async def _seen_of(self, page: Collection[Record], due: Due) -> list[Seen]:
        left_out: Collection[int] = ()
        if self._transform is not None:
            left_out = (await self._transform.apply([*page])).left_out
        found = []
        for index, record in enumerate(page):
            try:
                head = read_head(record.body)
            except (msgspec.MsgspecError, UnicodeError):  # a plugin wrote it, and no sink can have it by its id
                continue
            if head.id is None:
                continue
            is_due = due.after < record.position <= due.last and index not in left_out
            # The shop may have removed a forgotten person's rows. A completed record has a later copy with its id.
            is_kept = not head.erased and not is_completed(record.body)
            expected = is_due and is_kept and (self._passes is None or self._passes(record))
            if expected and record.position in due.dead:
                expected, self.dead = False, self.dead + 1
            found.append(Seen(head.id, record.received_at(), named(due.partition.name, record.position), expected))
        return found


def by_day(digests: Mapping[int, Digest]) -> dict[int, Digest]:
    """The digests of hours as digests of days."""
    found: dict[int, Digest] = {}
    for hour, digest in digests.items():
        _add(found, hour // 24, digest)
    return found


def _add(sums: dict[int, Digest], key: int, digest: Digest) -> None:
    count, total = sums.get(key, (0, 0))
    sums[key] = Digest(count + digest.size, (total + digest.sum) % (1 << 64))
