"""What a partition on Redis does while one of its tenants is moved: it refuses old commits, and notes changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple
from uuid import uuid4

import pytest

from ingestd.api.errors import CommandError, LeaseLost, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.api.store import Field, state_key
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.backends import append_each
from tests.support.redis_server import RedisServer, redis_server

VALUE, OTHER, FIELDS, MEMBERS = (state_key(kind, "shop", "visitor") for kind in ("value", "other", "fields", "members"))
MESSAGE = state_key("message", "shop", "message")
RECORD = Record("event", 1, b"{}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


class Daemons(NamedTuple):
    old: RedisBackend
    """A daemon that has not learned of a new placement."""
    new: RedisBackend


@asynccontextmanager
async def serving(server: RedisServer) -> AsyncIterator[Daemons]:
    prefix = f"{uuid4().hex}:"
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)
            await backend.open(serving=True)
            stack.push_async_callback(backend.close)
            found.append(backend)
        yield Daemons(*found)


async def put(backend: RedisBackend, value: str, *, step: bool = False) -> Append:
    state = backend.store.begin(1, event=not step, step=step)
    await state.put(VALUE, value)
    return Append(state, RECORD)


async def test_commits_of_an_earlier_placement_are_refused(server: RedisServer) -> None:
    async with serving(server) as (old, new):
        begun = await put(old, "begun")
        cursor = await old.journal.acquire_cursor("consumer", "beginning")
        step = await put(old, "step", step=True)
        new.store.placement = 5
        await new.store.fence(5)
        (error,) = await append_each(old.journal, [begun])
        assert isinstance(error, WriteConflict)
        with pytest.raises(Unavailable):
            await old.store.commit((await put(old, "command")).state)
        with pytest.raises(LeaseLost):
            await old.journal.commit([RECORD], step.state, cursor._replace(position=1))
        assert (await new.journal.extent()).records == 0
        assert await new.store.begin(2).get(VALUE) is None
        assert await append_each(new.journal, [await put(new, "new")]) == [None]
        before = await put(old, "learned meanwhile")
        old.store.placement = 5
        (error,) = await append_each(old.journal, [before])
        assert isinstance(error, WriteConflict)
        assert await append_each(old.journal, [await put(old, "learned")]) == [None]
        assert await new.store.begin(2).get(VALUE) == "learned"
        with pytest.raises(CommandError):
            await new.store.fence(4)


async def test_all_keys_that_change_are_noted(server: RedisServer) -> None:
    async with serving(server) as (daemon, other):
        contents = other.contents
        await append_each(daemon.journal, [await put(daemon, "before")])
        await contents.note_changes(7)
        state = daemon.store.begin(1, event=True)
        assert await state.renew(OTHER, "new", 1000) == ("new", True)
        await state.merge(FIELDS, {"name": Field(1, "value")})
        await append_each(daemon.journal, [Append(state, RECORD, IdempotencyKey(MESSAGE, "answer", 1000))])
        step = daemon.store.begin(1, step=True)
        await step.push(MEMBERS, "member", 1, keep=5)
        await step.delete(VALUE)
        await daemon.journal.commit([], step, await daemon.journal.acquire_cursor("consumer", "beginning"))
        assert {*await contents.take_changes(7, 10)} == {OTHER, FIELDS, MESSAGE, MEMBERS, VALUE}
        assert await contents.take_changes(7, 10) == []
        state = daemon.store.begin(500, event=True)
        assert await state.renew(OTHER, "newer", 1000) == ("new", False)
        await append_each(daemon.journal, [Append(state, RECORD)])
        assert await contents.take_changes(7, 10) == [OTHER]
        await contents.note_changes(8)
        with pytest.raises(CommandError):
            await contents.take_changes(7, 10)
        await contents.note_changes(0)
        await append_each(daemon.journal, [await put(daemon, "after")])
        await contents.note_changes(9)
        assert await contents.take_changes(9, 10) == []


async def test_the_number_of_noted_keys_is_limited(server: RedisServer) -> None:
    async with serving(server) as (daemon, other):
        await other.contents.note_changes(7)
        with server.client() as client:
            client.zadd(f"{daemon.database.prefix}changed", {f"{number}": 0 for number in range(100_000)})
            await append_each(daemon.journal, [await put(daemon, "one too many")])
            assert not client.exists(f"{daemon.database.prefix}changed")
        with pytest.raises(CommandError):
            await other.contents.take_changes(7, 10)
