"""The Bloom filter: absent keys cause no read of the file, and present keys are always found."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from ingestd.api.store import Field, State
from ingestd.plugins.stores.cache import Entries, Loaded
from ingestd.plugins.stores.cached_state import CachedState
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.plugins.stores.sqlite.bloom_filter import BloomFilter
from tests.support.journals import until


@asynccontextmanager
async def opened(path: Path, cache: int = 1) -> AsyncIterator[SqliteBackend]:
    """A back end almost without a cache: keys that are not ruled out are read from the file."""
    backend = SqliteBackend(path, cache=cache, busy_timeout=1.0)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def put(backend: SqliteBackend, *keys: str) -> None:
    state = backend.store.begin(1000)
    for key in keys:
        await state.put(key, f"of {key}")
    await backend.store.commit(state)


def names(kind: str, count: int) -> list[str]:
    return [f"{kind} {number}" for number in range(count)]


async def reads(backend: SqliteBackend, keys: list[str]) -> int:
    """The number of reads for these keys, which are all absent."""
    before = backend.database.entries.misses
    for key in keys:
        assert await backend.store.begin(1000).get(key) is None
    return backend.database.entries.misses - before


async def test_absent_keys_cause_reads_only_until_the_filter_is_built(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        await put(backend, "there")
        before = await reads(backend, names("before", 20))
        await backend.database.presence.remake()
        ruled_out = backend.database.entries.ruled_out
        assert before == 20
        assert await reads(backend, names("after", 20)) == 0
        assert backend.database.entries.ruled_out == ruled_out + 20
        assert await backend.store.begin(1000).get("there") == "of there"


async def test_the_filter_is_built_without_a_request(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        await put(backend, "there")
        await until(lambda: backend.database.presence.definitely_absent("not there"))
        assert not backend.database.presence.definitely_absent("there")


async def test_every_kind_of_entry_is_found_whether_written_before_or_after(tmp_path: Path) -> None:
    async def write(state: State, name: str) -> None:
        await state.put(f"value {name}", name)
        await state.renew(f"session {name}", name, 1000)
        await state.merge(f"profile {name}", {"name": Field(1, name)})
        await state.push(f"touches {name}", name, 5, keep=3)

    async with opened(tmp_path / "ingestd.db") as backend:
        for name in ("before", "after"):
            state = backend.store.begin(1000)
            await write(state, name)
            await backend.store.commit(state)
            if name == "before":
                await backend.database.presence.remake()
        for name in ("before", "after"):
            seen = backend.store.begin(1000)
            assert await seen.get(f"value {name}") == name
            assert await seen.renew(f"session {name}", "another", 1000) == (name, False)
            assert await seen.fields(f"profile {name}") == {"name": Field(1, name)}
            assert await seen.window(f"touches {name}") == [(name, 5)]
            # A set and a value with the same key are two entries.
            assert backend.database.presence.definitely_absent(f"touches {name}")


async def test_the_filter_holds_more_keys_than_were_counted_before_the_walk(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        there, coming = names("there", 3000), iter(names("coming", 100_000))
        await put(backend, *there)
        presence = BloomFilter(backend.database.connections, backend.database.renewals, smallest=16)
        walk = asyncio.create_task(presence.remake())
        while not walk.done():
            for key in islice(coming, 1000):
                presence.add(key)
            await asyncio.sleep(0.001)
        await walk
        assert not any(map(presence.definitely_absent, there))
        assert sum(map(presence.definitely_absent, names("not there", 1000))) > 900


async def test_keys_written_during_the_walk_are_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        await put(backend, *names("a", 5000))
        walk = asyncio.create_task(backend.database.presence.remake())
        written = 0
        while not walk.done():
            # Keys before and after the position of the walk.
            await put(backend, f"0 {written}", f"b {written}")
            written += 1
        await walk
        assert written > 1
        for key in (*names("0", written), *names("b", written), *names("a", 5000)[::500]):
            assert await backend.store.begin(1000).get(key) == f"of {key}"


async def test_keys_written_during_two_walks_at_once_are_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        await put(backend, *names("a", 5000))
        presence = backend.database.presence
        walks = asyncio.gather(presence.remake(), presence.remake())
        written = 0
        while not walks.done():
            await put(backend, f"0 {written}")
            written += 1
        await walks
        for key in (*names("0", written), *names("a", 5000)[::500]):
            assert await backend.store.begin(1000).get(key) == f"of {key}"


async def test_keys_in_flight_at_the_begin_of_the_walk_are_found(tmp_path: Path) -> None:
    go_on = threading.Event()

    def hold_up(_: sqlite3.Connection) -> None:
        assert go_on.wait(30)

    async with opened(tmp_path / "ingestd.db") as backend:
        commits = backend.database.commits
        assert commits is not None
        state = backend.store.begin(1000)
        await state.put("on its way", "x")
        committed = asyncio.create_task(commits.commit(state, first=hold_up))
        await until(lambda: not any(entry.dirty for entry in state.seen))
        walk = asyncio.create_task(backend.database.presence.remake())
        # Enough time for the walk to read everything.
        for _ in range(20):
            await backend.database.connections.background(lambda connection: connection.execute("SELECT 1").fetchone())
        go_on.set()
        await asyncio.gather(committed, walk)
        await put(backend, "evicts the other")
        assert await backend.store.begin(1000).get("on its way") == "x"


async def test_a_write_to_an_entry_ruled_out_during_its_read_is_kept(tmp_path: Path) -> None:
    ruled_out = False
    waiting: list[Loaded] = []
    entries = Entries(10, lambda keys, loaded: waiting.append(loaded), definitely_absent=lambda key: ruled_out)
    first = asyncio.create_task(CachedState(entries, 1000).renew("session", "first", 10))
    await until(lambda: bool(waiting))
    ruled_out = True
    assert await CachedState(entries, 1000).renew("session", "second", 10) == ("second", True)
    waiting.pop()([])
    assert await first == ("second", False)


async def test_the_size_of_the_filter_follows_the_number_of_keys(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db", cache=5000) as backend:
        there = names("there", 3000)
        await put(backend, *there)
        presence = BloomFilter(backend.database.connections, backend.database.renewals, smallest=16)
        await presence.remake()
        assert not any(map(presence.definitely_absent, there))
        assert sum(map(presence.definitely_absent, names("not there", 1000))) > 900
        large = presence.size
        state = backend.store.begin(1000)
        for key in there[1:]:
            await state.delete(key)
        await backend.store.commit(state)
        await presence.remake()
        assert presence.size < large
        assert not presence.definitely_absent(there[0])


async def test_each_table_is_walked_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db", cache=50_000) as backend:
        await backend.database.presence.remake()
        state = backend.store.begin(1000)
        for number in range(17_000):
            await state.put(f"value {number}", "x")
            await state.push(f"set {number}", "x", 5, keep=3)
        await backend.store.commit(state)
        statements: list[str] = []
        await backend.database.connections.background(
            lambda connection: connection.set_trace_callback(statements.append)
        )
        await BloomFilter(backend.database.connections, backend.database.renewals, smallest=16).remake()
        walked = [each for each in statements if "json_group_array" in each]
        assert [each.partition(" FROM ")[2] for each in walked if "key > ''" in each] == [
            f"(SELECT {key} WHERE key > '' ORDER BY key LIMIT 1000)"
            for key in ("key FROM state", "DISTINCT key FROM member")
        ]


async def test_keys_beyond_the_largest_filter_are_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        await put(backend, *names("there", 3000))
        presence = BloomFilter(backend.database.connections, backend.database.renewals, smallest=16, largest=64)
        await presence.remake()
        assert not any(map(presence.definitely_absent, names("there", 3000)))


async def test_deleted_keys_are_ruled_out_after_many_new_keys(tmp_path: Path) -> None:
    async with opened(tmp_path / "ingestd.db") as backend:
        presence = BloomFilter(backend.database.connections, backend.database.renewals, smallest=64)
        await put(backend, "gone", "there")
        await presence.step()
        state = backend.store.begin(1000)
        await state.delete("gone")
        await backend.store.commit(state)
        await presence.step()
        assert not presence.definitely_absent("gone")  # no new keys yet
        for key in names("new", 100):
            presence.add(key)
        await presence.step()
        assert presence.definitely_absent("gone")
        assert not presence.definitely_absent("there")
