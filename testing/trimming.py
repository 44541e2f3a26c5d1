"""The part of the journal contract about its size and the removal of records."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from ingestd.api.journal import Journal, JournalStats, RecordInfo, size_of

from .backends import NOW, BackendContract, append, make_record

__all__ = ["TrimmingContract"]

_LIMIT = 100  # records that one call of `trim` may remove


async def _trim(journal: Journal, up_to: int) -> int:
    """Remove all records up to a position; returns their number."""
    total = 0
    while count := await journal.trim(up_to, _LIMIT):
        assert count <= _LIMIT
        total += count
    return total


class TrimmingContract(BackendContract):
    """The behaviour that retention needs. `JournalContract` includes these tests."""

    async def test_the_extent_is_that_of_all_records_there_are(self, tmp_path: Path) -> None:
        records = [replace(make_record("“é” 🛒" * n), at=NOW + n) for n in range(10)]
        async with self.backend(tmp_path) as backend:
            assert await backend.journal.extent() == JournalStats(1, 0, 0, 0, None)
            await append(backend, records[:3])
            await asyncio.gather(*(append(backend, [record]) for record in records[3:]))
            assert await backend.journal.extent() == JournalStats(1, 10, 10, sum(map(size_of, records)), NOW)
            assert await _trim(backend.journal, 4) == 4
            left = JournalStats(5, 10, 6, sum(map(size_of, records[4:])), NOW + 4)
            assert await backend.journal.extent() == left
        async with self.backend(tmp_path) as backend:
            assert await backend.journal.extent() == left

    async def test_outlines_are_of_the_records_a_read_returns(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [replace(make_record("“é” 🛒" * n), at=NOW - n) for n in range(300)])
            await _trim(backend.journal, 20)
            for after, limit in (0, 10), (15, 200), (100, 1000), (300, 10):
                read = await backend.journal.read(after, limit)
                assert list(await backend.journal.outlines(after, limit)) == [
                    RecordInfo(record.position, record.at, size_of(record)) for record in read
                ]

    async def test_trimming_removes_the_oldest_and_no_more_than_asked(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record(f"{n}") for n in range(1, 301)])
            assert await backend.journal.trim(0, 100) == 0
            assert 0 < await backend.journal.trim(300, 10) <= 10
            assert (await backend.journal.extent()).first <= 11
            await _trim(backend.journal, 200)
            assert await backend.journal.trim(150, 100) == 0
            assert [record.decode()["id"] for record in await backend.journal.read(0, 3)] == ["201", "202", "203"]
            assert [record.position for record in await backend.journal.read(250, 2)] == [251, 252]
        async with self.backend(tmp_path) as backend:
            assert [record.position for record in await backend.journal.read(0, 1000)] == [*range(201, 301)]

    async def test_a_journal_trimmed_empty_goes_on_counting(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record()] * 5)
            assert await _trim(backend.journal, 1000) == 5
            assert await backend.journal.extent() == JournalStats(6, 5, 0, 0, None)
            assert list(await backend.journal.read(0, 10)) == []
        async with self.backend(tmp_path) as backend:
            assert await backend.journal.last() == 5
            assert (await backend.journal.acquire_cursor("new", "beginning")).position == 5
            assert await append(backend, [make_record()]) == 6
            assert [record.position for record in await backend.journal.read(0, 10)] == [6]

    async def test_large_records_are_removed_too(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record("x" * 3_000_000)] * 4 + [make_record()])
            assert await _trim(backend.journal, 5) == 5
            assert (await backend.journal.extent()).bytes == 0

    async def test_places_go_along_with_what_is_removed(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record()] * 10)
            await backend.journal.ensure_cursor("behind", "beginning")
            before = await backend.journal.acquire_cursor("before", "beginning")
            await append(backend, [], before._replace(position=8))
            await _trim(backend.journal, 5)
            assert {cursor.name: cursor.position for cursor in await backend.journal.cursors()} == {
                "before": 8,
                "behind": 5,
            }
            assert (await backend.journal.acquire_cursor("new", "beginning")).position == 5
        async with self.backend(tmp_path) as backend:
            behind = await backend.journal.acquire_cursor("behind", "beginning")
            assert behind.position == 5
            assert (await backend.journal.acquire_cursor("before", "beginning")).position == 8
            await append(backend, [], behind._replace(position=2))  # by a consumer that does not know of the trim yet
            assert (await backend.journal.acquire_cursor("behind", "beginning")).position == 5

    async def test_trimming_beside_appends(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:

            async def appending(writer: int) -> None:
                for number in range(25):
                    await append(backend, [make_record(f"{writer}-{number}")] * (1 + number % 3))

            async def trimming() -> None:
                removed = 0
                while removed < 200:
                    removed += await backend.journal.trim(200, 7)
                    extent = await backend.journal.extent()
                    assert extent.records == extent.last - extent.first + 1
                    assert extent.first > removed

            await asyncio.wait_for(asyncio.gather(trimming(), *(appending(writer) for writer in range(8))), 20)
            left = await backend.journal.read(0, 1000)
            last = await backend.journal.last()
            assert [record.position for record in left] == [*range(201, last + 1)]
            extent = await backend.journal.extent()
            assert extent == JournalStats(201, last, len(left), sum(map(size_of, left)), NOW)
