"""The journal on Redis is a chain of small streams: nothing shows where one ends, and no key grows with the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import JournalStats, RecordInfo, size_of
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.support.periodic import TIMING
from tests.support.journals import append, read_all, until
from tests.support.redis_pieces import pieces_of_journal
from tests.support.redis_server import RedisServer, redis_server

PIECE = 2000
"""The bytes of a piece."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.stores.redis.link.PIECE_BYTES", PIECE)
    monkeypatch.setattr(TIMING, "redis_heartbeat", 0.1)


@asynccontextmanager
async def opened(server: RedisServer, prefix: str, *, serving: bool = True) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


def record_of(size: int, at: int = 1) -> Record:
    return Record("event", at, (uuid4().hex * (size // 32 + 1))[:size].encode())


def placed(records: Sequence[Record]) -> list[Record]:
    return [replace(record, position=index) for index, record in enumerate(records, 1)]


def streams(server: RedisServer, prefix: str) -> list[int]:
    """The number of entries of each piece."""
    with server.client() as client:
        return [client.xlen(key) for key in pieces_of_journal(client, prefix)]


# Borders


async def test_a_batch_is_divided_where_a_piece_is_full(server: RedisServer, prefix: str) -> None:
    records = [record_of(468) for _ in range(10)]  # 500 bytes each, as the journal counts them
    async with opened(server, prefix) as backend:
        await append(backend, records)
        assert streams(server, prefix) == [4, 4, 2]
        assert await backend.journal.read(3, 2) == placed(records)[3:5]
        assert await read_all(backend.journal) == placed(records)


async def test_a_record_above_the_bound_has_a_piece_to_itself(server: RedisServer, prefix: str) -> None:
    records = [record_of(size) for size in (100, 3 * PIECE, 100, 100, PIECE - 32, 3 * PIECE, 3 * PIECE)]
    async with opened(server, prefix) as backend:
        for record in records:
            await append(backend, [record])
        assert streams(server, prefix) == [1, 1, 2, 1, 1, 1]
        assert await read_all(backend.journal) == placed(records)


async def test_trimming_to_a_border_drops_the_pieces_before_it(server: RedisServer, prefix: str) -> None:
    async with opened(server, prefix) as backend:
        await append(backend, [record_of(468) for _ in range(10)])
        assert await backend.journal.trim(4, 100) == 4
        assert streams(server, prefix) == [4, 2]
        assert await backend.journal.trim(9, 3) == 3
        assert streams(server, prefix) == [1, 2]
        assert await backend.journal.trim(10, 100) == 3
        assert streams(server, prefix) == [0]
        assert await backend.journal.extent() == JournalStats(11, 10, 0, 0, None)
        await append(backend, [record_of(3 * PIECE)])
        assert await backend.journal.trim(10, 100) == 0
        assert (await backend.journal.extent()).first == 11
        with server.client() as client:
            assert len(client.keys(f"{prefix}journal:*")) == len(pieces_of_journal(client, prefix))


async def test_records_replaced_at_a_border_are_read_in_their_places(server: RedisServer, prefix: str) -> None:
    async with opened(server, prefix) as backend:
        await append(backend, [record_of(468) for _ in range(12)])
        records = await read_all(backend.journal)
        wanted = dict.fromkeys(records[3:5], b"blank")
        assert await backend.journal.replace([*wanted.items()]) == 2
        expected = [replace(record, body=wanted.get(record, record.body)) for record in records]
        assert await read_all(backend.journal) == expected
        for after in range(12):
            assert await backend.journal.read(after, 3) == expected[after : after + 3]
        assert await backend.journal.trim(4, 100) == 4
        with server.client() as client:
            assert client.keys(f"{prefix}journal:1*") == []


@given(data=st.data())
def test_a_journal_in_pieces_reads_as_one(server: RedisServer, data: st.DataObject) -> None:
    asyncio.run(reads_as_one(server, data))


async def reads_as_one(server: RedisServer, data: st.DataObject) -> None:
    sizes = st.lists(st.sampled_from([1, 50, 400, 900, 2500]), min_size=1, max_size=12)
    kept: list[Record] = []
    last = 0
    async with opened(server, f"{uuid4().hex}:") as backend:
        for _ in range(data.draw(st.integers(1, 8))):
            match data.draw(st.sampled_from(["append", "append", "trim", "replace"])):
                case "append":
                    new = [record_of(size, at=last + index) for index, size in enumerate(data.draw(sizes), 1)]
                    assert await append(backend, new) == last + len(new)
                    kept += [replace(record, position=last + index) for index, record in enumerate(new, 1)]
                    last += len(new)
                case "trim":
                    up_to = data.draw(st.integers(0, last))
                    while await backend.journal.trim(up_to, 3):
                        pass
                    kept = [record for record in kept if record.position > up_to]
                case _:
                    chosen = data.draw(st.sets(st.sampled_from(kept))) if kept else set()
                    changes = {record: b"blank" * (index % 3) for index, record in enumerate(chosen)}
                    assert await backend.journal.replace([*changes.items()]) == len(chosen)
                    kept = [replace(record, body=changes.get(record, record.body)) for record in kept]
            after, limit = data.draw(st.integers(0, last)), data.draw(st.integers(1, 10))
            expected = [record for record in kept if record.position > after]
            assert await backend.journal._look_up(after, limit) == expected[:limit]
            walked = after
            for place in range(0, len(expected), 2):  # as a consumer reads, page after page
                some = await backend.journal._look_up(walked, 2)
                assert some == expected[place : place + 2]
                walked = some[-1].position
            page = (await backend.journal._look_up_page(after, 100, 1000)).records
            assert page == expected[: len(page)]
            assert page or not expected
            assert list(await backend.journal.outlines(after, limit)) == [
                RecordInfo(record.position, record.at, size_of(record)) for record in expected[:limit]
            ]
            extent = await backend.journal.extent()
            assert (extent.first, extent.last) == (kept[0].position if kept else last + 1, last)
            assert (extent.records, extent.bytes) == (len(kept), sum(map(size_of, kept)))


async def test_a_killed_server_comes_back_with_whole_batches(tmp_path: Path, prefix: str) -> None:
    with redis_server(tmp_path / "redis") as server:
        async with opened(server, prefix) as backend:
            stored = 0
            for number in range(3):
                batches = [[record_of(700) for _ in range(10)] for _ in range(20)]
                writing = asyncio.gather(*(append(backend, batch) for batch in batches), return_exceptions=True)
                await asyncio.sleep(0.01 * number)
                server.kill()
                server.start()
                stored += 10 * sum(isinstance(position, int) for position in await writing)
                await until(lambda: backend.problem() is None)
            records = await read_all(backend.journal)
            assert [record.position for record in records] == [*range(1, len(records) + 1)]
            assert len(records) >= stored
            assert len(records) % 10 == 0
            extent = await backend.journal.extent()
            assert (extent.records, extent.bytes) == (len(records), sum(map(size_of, records)))
            assert backend.store.losses == 0


# Another daemon


async def test_a_daemon_follows_the_pieces_that_another_one_begins(server: RedisServer, prefix: str) -> None:
    async with opened(server, prefix) as writer, opened(server, prefix) as reader:
        for number in range(12):
            waiting = asyncio.create_task(reader.journal.wait(number))
            await append(writer, [record_of(1200)])
            await asyncio.wait_for(waiting, 5)
            assert len(await reader.journal.read(number, 10)) == 1


# The single stream of earlier versions


def make_single_stream(server: RedisServer, prefix: str, records: Sequence[Record]) -> None:
    """As an earlier version left it. The second record has a replaced body."""
    with server.client() as client:
        for record in records:
            if record.position == 2:
                body = msgspec.msgpack.encode([record.type, record.at, record.body.decode()])
                client.hset(f"{prefix}replaced", "2", body)
                client.zadd(f"{prefix}replaced-at", {"2": 2})
            else:
                entry: Any = {"t": record.type, "a": record.at, "b": record.body}
                client.xadd(f"{prefix}journal", entry, id=f"{record.position}-0")
        size = sum(map(size_of, records))
        client.hset(f"{prefix}meta", mapping={"last": len(records), "records": len(records), "bytes": size})
        client.set(f"{prefix}store-id", "before")


async def test_the_stream_of_an_earlier_version_is_the_first_piece(server: RedisServer, prefix: str) -> None:
    records = placed([record_of(468) for _ in range(9)])
    make_single_stream(server, prefix, records)
    async with opened(server, prefix, serving=False) as command:  # beside a daemon of the earlier version
        assert await read_all(command.journal) == records
    with server.client() as client:
        assert client.type(f"{prefix}journal") == b"stream"
    async with opened(server, prefix) as backend:
        assert backend.store.losses == 0
        assert backend.store.loss is None
        assert await read_all(backend.journal) == records
        assert await backend.journal.replace([(records[2], b"blank")]) == 1
        assert await backend.journal.trim(1, 100) == 1
        new = [replace(record_of(468), position=position) for position in range(10, 16)]
        await append(backend, new)
        expected = [records[1], replace(records[2], body=b"blank"), *records[3:], *new]
        backend.journal._tail.forget()
        assert await read_all(backend.journal) == expected
        extent = JournalStats(2, 15, 14, sum(map(size_of, expected)), 1)
        assert await backend.journal.extent() == extent
        with server.client() as client:
            with pytest.raises(Exception, match="WRONGTYPE"):  # as a daemon of the earlier version would append
                client.xadd(f"{prefix}journal", {"t": "event"}, id="16-0")
            assert await backend.journal.trim(9, 100) == 8
            assert client.keys(f"{prefix}journal:0*") == []
            assert client.keys(f"{prefix}replaced*") == []
        assert await read_all(backend.journal) == new


# Sizes


async def test_no_key_grows_with_the_journal(server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = 64 << 10
    monkeypatch.setattr("ingestd.plugins.stores.redis.link.PIECE_BYTES", piece)
    async with opened(server, prefix) as backend:
        for _ in range(20):
            await append(backend, [record_of(200) for _ in range(1000)])
        records = await read_all(backend.journal)
        for first in range(0, len(records), 500):
            await backend.journal.replace([(record, record.body) for record in records[first : first + 500]])
        with server.client() as client:
            sizes: dict[bytes, Any] = {key: client.memory_usage(key, 0) for key in client.keys(f"{prefix}*")}
        assert len([key for key in sizes if b"journal:" in key]) > 100
        assert max(sizes.values()) < 3 * piece, max(sizes.items(), key=lambda item: item[1])


# A part of the store is lost


async def noticed(backend: RedisBackend) -> str:
    await until(lambda: backend.store.losses == 1 and backend.problem() is None)
    return f"{backend.store.loss}"


LOST = pytest.mark.logs(
    "ingestd.redis ERROR the store has lost a part of its keys",
    "ingestd.redis WARNING .*: its cursor, .*, was beyond",
    "ingestd.redis WARNING events cannot be stored: ",
)


@LOST
@pytest.mark.parametrize("part", [0, 1, 2, 3])
async def test_the_loss_of_a_quarter_of_the_keys_is_noticed_by_a_running_daemon(
    server: RedisServer, prefix: str, part: int
) -> None:
    async with opened(server, prefix) as backend:
        await append(backend, [record_of(1000) for _ in range(50)])
        with server.client() as client:
            client.delete(*sorted(client.keys(f"{prefix}*"))[part::4])
        assert "has lost a part of its keys" in await noticed(backend)
        left = [record.position for record in await read_all(backend.journal)]
        assert left == sorted(left)
        extent = await backend.journal.extent()
        assert (extent.records, extent.last) == (len(left), 50)
        assert await append(backend, [record_of(100)]) == 51
        assert (await read_all(backend.journal))[-1].position == 51


@LOST
@pytest.mark.parametrize("lost", ["journal", "journal:7", "meta", "store-id", "mark:64", "journal*", "mark:*"])
async def test_the_loss_of_a_key_is_noticed(server: RedisServer, prefix: str, lost: str) -> None:
    async with opened(server, prefix) as backend:
        cursor = await backend.journal.acquire_cursor("c", "beginning")
        await append(backend, [record_of(1000) for _ in range(20)])
        await backend.journal.release(cursor)
        with server.client() as client:
            client.delete(*client.keys(f"{prefix}{lost}"))
        await noticed(backend)
        assert (await backend.journal.extent()).last == 20
        assert await append(backend, [record_of(100)]) == 21
        expected = {"journal:7": 19, "journal*": 0}.get(lost, 20)
        assert len(await read_all(backend.journal)) == expected + 1
        await asyncio.sleep(0.5)
        assert backend.store.losses == 1


@LOST
async def test_the_loss_of_a_part_is_noticed_at_the_start_and_by_commands(server: RedisServer, prefix: str) -> None:
    async with opened(server, prefix) as backend:
        await append(backend, [record_of(1000) for _ in range(20)])
    with server.client() as client:
        client.delete(f"{prefix}mark:5", f"{prefix}journal:3")
    with pytest.raises(Unavailable, match="has lost a part of its keys"):
        async with opened(server, prefix, serving=False):
            pass
    async with opened(server, prefix) as backend:
        assert backend.store.loss is not None
        assert len(await read_all(backend.journal)) == 19
    async with opened(server, prefix) as backend:
        assert "has lost a part of its keys" in f"{backend.store.loss}"  # until an operator acknowledges it
