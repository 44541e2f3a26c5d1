"""The order of an export over the journals of several partitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ingestd.api.backend import Partition
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.plugins.tools.journal_reading import RecordReader
from tests.support.backends import sqlite_backend
from tests.support.partitioned_backend import PartitionedBackend
from tests.support.passing_journal import PassingJournal


async def append(partition: Partition, ats: Sequence[int]) -> None:
    records = [Record("event", at, f"{partition.name} {number}".encode()) for number, at in enumerate(ats)]
    await partition.journal.commit(records, partition.store.begin(0))


async def read(partitions: Sequence[Partition]) -> list[Record]:
    return [record async for page in RecordReader(partitions).pages() for record in page]


async def test_records_of_all_partitions_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    backend = PartitionedBackend(tmp_path / "shop.db", 3)
    await backend.open(serving=True)
    try:
        # More than a page, and in one partition nothing.
        times = [
            sorted(random.Random(index).choices(range(100_000), k=count)) for index, count in enumerate((1700, 600))
        ]
        for partition, ats in zip(backend.partitions, times, strict=False):
            await append(partition, ats)
        found = await read(backend.partitions)
        assert [record.at for record in found] == sorted(chain(*times))
        for partition, ats in zip(backend.partitions, times, strict=False):
            own = [record for record in found if record.body.startswith(partition.name.encode())]
            assert [record.position for record in own] == [*range(1, len(ats) + 1)]
    finally:
        await backend.close()


async def test_records_of_a_partition_keep_their_order_even_if_its_clock_went_back(tmp_path: Path) -> None:
    backend = PartitionedBackend(tmp_path / "shop.db", 2)
    await backend.open(serving=True)
    try:
        first, second = backend.partitions
        await append(first, [10, 50, 5, 60])
        await append(second, [20, 55])
        found = [record.body.decode() for record in await read(backend.partitions)]
        assert sorted(found) == ["0 0", "0 1", "0 2", "0 3", "1 0", "1 1"]
        for partition in ("0", "1"):
            own = [each for each in found if each.startswith(partition)]
            assert own == sorted(own)
    finally:
        await backend.close()


class _CountingJournal(PassingJournal):
    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.records = 0

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        page = await super().read(after, limit)
        self.records += len(page)
        return page


async def test_records_before_the_beginning_are_not_read(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        (partition,) = backend.partitions
        await append(partition, range(3_000))
        journal = _CountingJournal(partition.journal)
        reader = RecordReader([partition._replace(journal=journal)], 2_990)
        assert [record.at async for page in reader.pages() for record in page] == [*range(2_990, 3_000)]
        assert journal.records == 10
        await append(partition, [1, 3_000])
        assert [record.at async for page in reader.pages() for record in page] == [1, 3_000]
