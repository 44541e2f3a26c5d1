"""Fields on both back ends equal those of a model, for random merges with random bounds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.backend import Backend
from ingestd.api.contents import Entry
from ingestd.api.store import Field
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.plugins.stores.sqlite import SqliteBackend
from tests.support.redis_server import RedisServer, redis_server
from tests.support.state_model import Model

Opener = Callable[[], AbstractAsyncContextManager[Backend]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Backend]:
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


keys = st.sampled_from(["k", "k", "k", "l"])
fields = st.dictionaries(
    st.sampled_from(["a", "b", "é", ""]),
    st.builds(Field, st.integers(0, 3), st.sampled_from(["", "x", "ü|"])),
    min_size=1,
    max_size=3,
)
bounds = st.fixed_dictionaries({"keep": st.none() | st.integers(0, 3), "keep_size": st.none() | st.integers(0, 8)})
merges = st.tuples(st.just("merge"), keys, fields, bounds)
others = st.one_of(
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("put"), keys, st.just("value"), st.none() | st.just(5)),
)
step = st.one_of(merges, merges, merges, merges, others, st.sampled_from(["commit", "step", "reopen"]))
steps = st.one_of(st.lists(step, max_size=6), st.lists(step, min_size=10, max_size=25))  # few or many steps


async def run(open_backend: Opener, steps: list[Any]) -> None:
    model = Model()
    while steps:
        async with open_backend() as backend:
            state = backend.store.begin(100)
            while steps and (what := steps.pop(0)) != "reopen":
                if isinstance(what, str):
                    await backend.store.commit(state)
                    state = backend.store.begin(100, step=what == "step")
                    continue
                name, *arguments = what
                bounds = arguments.pop() if name == "merge" else {}
                expected = getattr(model, name)(100, *arguments, **bounds)
                assert await getattr(state, name)(*arguments, **bounds) == expected
                assert await state.fields(arguments[0]) == model.fields(100, arguments[0])
            await backend.store.commit(state)
    async with open_backend() as backend:
        for key in ("k", "l"):
            assert await backend.store.begin(100).fields(key) == model.fields(100, key)
            assert await backend.store.begin(100).get(key) == model.get(100, key)


@given(st.sampled_from([1, 100]), steps)
def test_fields_on_sqlite_are_those_of_the_model(cache: int, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ingestd.db"
        asyncio.run(run(lambda: opened(SqliteBackend(path, cache=cache, busy_timeout=1.0)), steps))


@given(steps)
def test_fields_on_redis_are_those_of_the_model(server: RedisServer, steps: list[Any]) -> None:
    prefix = f"{uuid4()}:"

    def open_backend() -> AbstractAsyncContextManager[Backend]:
        pool = make_pool(server.url, (), timeout=2)
        return opened(RedisBackend(pool, prefix=prefix, timeout=2, patience=5))

    asyncio.run(run(open_backend, steps))


EARLIER = {"old": (1, "a"), "email \x00 “é”": (3, "b"), "newer": (2, "c")}


async def check_earlier(open_backend: Opener) -> None:
    """An earlier version has written the fields of "read" and "merged"."""
    there = {name: Field(*field) for name, field in EARLIER.items()}
    async with open_backend() as backend:
        state = backend.store.begin(100)
        assert await state.fields("read") == await state.fields("merged") == there
        assert await state.merge("merged", {"new": Field(4, "d")}, keep=3) == 1
        await backend.store.commit(state)
    async with open_backend() as backend:
        state = backend.store.begin(100)
        assert await state.fields("read") == there
        del there["old"]
        assert await state.fields("merged") == {**there, "new": Field(4, "d")}
        await state.delete("read")
        await state.delete("merged")
        await backend.store.commit(state)
    async with open_backend() as backend:
        state = backend.store.begin(100)
        assert await state.fields("read") == await state.fields("merged") == {}


def rows(path: Path) -> dict[str, set[str]]:
    """The names in the table `field`, by key."""
    other = sqlite3.connect(path)
    found: dict[str, set[str]] = {}
    for key, name in other.execute("SELECT key, name FROM field"):
        found.setdefault(key, set()).add(name)
    other.close()
    return found


async def test_on_sqlite_fields_of_an_earlier_version_are_read_and_moved_at_their_next_change(tmp_path: Path) -> None:
    path = tmp_path / "ingestd.db"

    def open_backend() -> AbstractAsyncContextManager[Backend]:
        return opened(SqliteBackend(path, cache=100, busy_timeout=1.0))

    async with open_backend():
        pass
    other = sqlite3.connect(path)
    other.executemany(
        "INSERT INTO state (key, fields) VALUES (?, ?)", [(k, json.dumps(EARLIER)) for k in ("read", "merged")]
    )
    other.commit()
    other.close()
    await check_earlier(open_backend)
    assert rows(path) == {}


async def test_on_sqlite_fields_of_an_earlier_version_are_copied_with_their_end(tmp_path: Path) -> None:
    path = tmp_path / "ingestd.db"
    async with opened(SqliteBackend(path, cache=100, busy_timeout=1.0)) as backend:
        assert backend.contents is not None
        other = sqlite3.connect(path)
        other.execute("INSERT INTO state (key, fields) VALUES ('kind:key', ?)", (json.dumps(EARLIER),))
        other.commit()
        other.close()
        await backend.store.set_ends("kind", lambda key: 1000)
        fields = {name: Field(*field) for name, field in EARLIER.items()}
        assert [each async for some in backend.contents.entries() for each in some] == [
            Entry("kind:key", fields=fields, expires=1000)
        ]


async def test_on_redis_fields_of_an_earlier_version_are_read_and_bounded(server: RedisServer) -> None:
    client = server.client()
    for key in ("read", "merged"):
        client.hset(f"earlier:{key}", mapping={name: f"{at}|{value}" for name, (at, value) in EARLIER.items()})
    await check_earlier(
        lambda: opened(RedisBackend(make_pool(server.url, (), timeout=2), prefix="earlier:", timeout=2, patience=5))
    )
    assert not client.keys("earlier:read*") + client.keys("earlier:merged*")
    # An earlier version may run beside this one for a while.
    client.hset("earlier:mixed", mapping={"a": "1|x", "b": "2|x"})
    async with opened(
        RedisBackend(make_pool(server.url, (), timeout=2), prefix="earlier:", timeout=2, patience=5)
    ) as backend:
        state = backend.store.begin(100)
        assert await state.merge("mixed", {"c": Field(3, "x")}, keep=3, keep_size=6) == 0
        await backend.store.commit(state)
        client.hset("earlier:mixed", "d", "0|x")
        state = backend.store.begin(100)
        assert await state.merge("mixed", {"e": Field(5, "x")}, keep=3, keep_size=6) == 2
        await backend.store.commit(state)
        assert {*await backend.store.begin(100).fields("mixed")} == {*"bce"}
    client.close()


async def test_on_sqlite_a_commit_writes_only_the_changed_fields(tmp_path: Path) -> None:
    path = tmp_path / "ingestd.db"
    async with opened(SqliteBackend(path, cache=100, busy_timeout=1.0)) as backend:
        store = backend.store
        for at, names_then in enumerate(("abc", "cd")):
            state = store.begin(100)
            await state.merge("profile", {name: Field(at, "x") for name in names_then}, keep=3)
            await store.commit(state)
        assert rows(path) == {"profile": {*"bcd"}}
        other = sqlite3.connect(path)
        other.execute("UPDATE field SET value = 'not read' WHERE name = 'b'")
        other.commit()
        other.close()
        state = store.begin(100)
        await state.merge("profile", {"d": Field(2, "y")}, keep=3)
        await store.commit(state)
    async with opened(SqliteBackend(path, cache=100, busy_timeout=1.0)) as backend:
        fields = await backend.store.begin(100).fields("profile")
        assert fields == {"b": Field(0, "not read"), "c": Field(1, "x"), "d": Field(2, "y")}
