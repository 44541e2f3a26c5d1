"""The contract suite any sink must pass. Subclass it in a test module of your own::

    class TestMySink(SinkContract):
        def make_sink(self, folder):
            return MySink("mine", MySink.Options(path=folder / "out"))

        async def read_back(self, folder):
            return [json.loads(line) for line in (folder / "out").read_text().splitlines()]

It needs pytest and nothing else: every test runs on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ..events import Record
from ..ids import time_uuid
from ..sink import Sink

__all__ = ["SinkContract", "make_records"]


def make_records(count: int, **members: Any) -> list[Record]:
    """Event records as the journal holds them, each with an id of its own; `members` replace or add members."""
    records = []
    for number in range(1, count + 1):
        at = 1_795_233_906_000 + number
        value = {
            "id": time_uuid(),
            "type": "event",
            "tenant": "shop",
            "endpoint": "track",
            "receivedAt": "2026-11-21T04:05:06.000Z",
            "timestamp": "2026-11-21T04:05:06.000Z",
            "key": "Page View",
            "data": {"number": number},
            "anonymousId": f"visitor-{number}",
            "userId": None,
            "sessionId": "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11",
            "sessionIsNew": False,
            "dispatchId": None,
            "messageId": None,
            "context": {},
            "extra": {},
        }
        body = json.dumps({**value, **members}, ensure_ascii=False, separators=(",", ":")).encode()
        records.append(Record("event", at, body, number))
    return records


class SinkContract(ABC):
    """What delivery and operators rely on: what was written is there, whole, in order, at least once."""

    @abstractmethod
    def make_sink(self, folder: Path) -> Sink:
        """A sink, not yet open. All sinks of one folder (a fresh one for each test) lead to one place."""

    @abstractmethod
    async def read_back(self, folder: Path) -> Sequence[Any]:
        """The records that place holds, in the order they were written, as decoded JSON objects."""

    def test_a_batch_of_one_and_a_batch_of_many_come_in_order(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            one, many, last = make_records(1), make_records(500), make_records(1)
            async with self._open(tmp_path) as sink:
                for batch in (one, many, last):
                    await sink.write(batch)
                    # Returning means durable: it must be there now, not only after close().
                    assert await self._ids(tmp_path) >= set(_ids(batch))
            await self._assert_holds(tmp_path, [*one, *many, *last])

        asyncio.run(scenario())

    def test_what_was_written_stays_when_it_is_closed_and_opened_again(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            written = []
            for _ in range(3):
                async with self._open(tmp_path) as sink:
                    batch = make_records(3)
                    await sink.write(batch)
                    written += batch
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_it_can_be_opened_again(self, tmp_path: Path) -> None:
        """The same object: its daemon may lose a sink to another one, and go on with it again."""

        async def scenario() -> None:
            written = []
            sink = self.make_sink(tmp_path)
            for _ in range(3):
                batch = make_records(3)
                await sink.open()
                await sink.write(batch)
                await sink.close()
                written += batch
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_it_closes_also_when_it_never_wrote_or_opened(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            await self.make_sink(tmp_path).close()
            async with self._open(tmp_path):
                pass
            async with self._open(tmp_path) as sink:
                await sink.write(make_records(1))

        asyncio.run(scenario())

    def test_any_text_comes_through(self, tmp_path: Path) -> None:
        texts = [
            "",
            "zażółć gęślą jaźń",
            "🛒🧾",
            "日本語",
            "\x00",
            "\x1f\x7f",
            '"\\/',
            "a\nb\r\nc",
            "\u2028\u2029",
            "\ufeff",
        ]

        async def scenario() -> None:
            batch = make_records(3, data={"texts": texts, **{text: text for text in texts}})
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    def test_a_record_of_a_megabyte_comes_through(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            batch = [*make_records(1), *make_records(1, data={"long": "ż" * (1 << 19)}), *make_records(1)]
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    def test_a_batch_may_come_again(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            batch, next_batch = make_records(5), make_records(5)
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
                await sink.write(batch)
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
                await sink.write(next_batch)
            await self._assert_holds(tmp_path, [*batch, *next_batch])

        asyncio.run(scenario())

    def test_check_passes_where_it_opens(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self._open(tmp_path) as sink:
                await sink.check()
                await sink.write(make_records(1))
                await sink.check()
            fresh = self.make_sink(tmp_path)
            await fresh.check()  # as `ingestd check` does it
            await fresh.close()

        asyncio.run(scenario())

    def test_a_write_that_is_cancelled_and_made_again_loses_nothing(self, tmp_path: Path) -> None:
        """That is what a time limit does to a write that takes too long."""

        async def scenario() -> None:
            written = []
            async with self._open(tmp_path) as sink:
                for turns in (0, 1, 2, 3, 5, 8):
                    batch = make_records(20)
                    await _cancelled_after(turns, sink.write(batch))
                    await sink.write(batch)
                    written += batch
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    @asynccontextmanager
    async def _open(self, folder: Path) -> AsyncIterator[Sink]:
        sink = self.make_sink(folder)
        try:
            await sink.open()
            yield sink
        finally:
            await sink.close()

    async def _ids(self, folder: Path) -> set[str]:
        return {value["id"] for value in await self.read_back(folder)}

    async def _assert_holds(self, folder: Path, written: Sequence[Record]) -> None:
        """Each record is there, unchanged, and for the first time in its order; some may be there again."""
        held: dict[str, Any] = {}
        for value in await self.read_back(folder):
            assert held.setdefault(value["id"], value) == value
        assert list(held) == _ids(written)
        for record in written:
            value = record.decode()
            assert held[value["id"]] == value


def _ids(records: Iterable[Record]) -> list[str]:
    return [record.decode()["id"] for record in records]


async def _cancelled_after(turns: int, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
