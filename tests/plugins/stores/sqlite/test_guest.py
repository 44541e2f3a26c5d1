"""Events that a command appends to a SQLite file beside the daemon that owns it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.errors import DuplicateMessage, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.api.store import State
from tests.support.backends import sqlite_backend

LIFE = 60_000


class Pair(NamedTuple):
    owner: Backend
    guest: Backend

    def begin(self) -> State:
        return self.guest.store.begin(times.now(), event=True)

    async def append(self, *appends: Append) -> Sequence[Exception | None]:
        done: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()
        await self.guest.journal.append(appends, done.set_result)
        return await done

    async def bodies(self) -> list[bytes]:
        return [record.body for record in await self.owner.journal.read(0, 100)]


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    async with sqlite_backend(folder) as owner, sqlite_backend(folder, serving=False) as guest:
        yield Pair(owner, guest)


def record(number: int) -> Record:
    return Record("event", times.now(), b'{"id":"%d"}' % number)


def claim(name: str) -> IdempotencyKey:
    return IdempotencyKey(f"message:{name}", f"value of {name}", LIFE)


async def test_transactions_of_events_are_stored_in_order_and_see_each_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        first, second = both.begin(), both.begin()
        await first.put("session:a", "one")
        assert await second.get("session:a") == "one"
        await second.put("session:a", "two")
        results = await asyncio.gather(
            both.append(Append(first, record(1)), Append(second, record(2))),
            both.append(Append(both.begin(), record(3))),
        )
        assert [*map(list, results)] == [[None, None], [None]]
        assert await both.bodies() == [record(number).body for number in (1, 2, 3)]
        assert await both.owner.store.begin(times.now()).get("session:a") == "two"


async def test_only_the_first_claim_of_a_message_stores_a_record(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        results = await both.append(
            Append(both.begin(), record(1), claim("m")), Append(both.begin(), record(2), claim("m")),
            Append(both.begin(), record(3), claim("n")),
        )  # fmt: skip
        assert [type(result) for result in results] == [type(None), DuplicateMessage, type(None)]
        assert isinstance(results[1], DuplicateMessage)
        assert results[1].value == "value of m"
        (again,) = await both.append(Append(both.begin(), record(4), claim("n")))
        assert isinstance(again, DuplicateMessage)
        assert await both.bodies() == [record(1).body, record(3).body]


async def test_a_transaction_whose_reads_have_changed_stores_nothing_and_may_run_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        state = both.begin()
        assert await state.get("link:a") is None
        other = both.owner.store.begin(times.now())
        await other.put("link:a", "ada")
        await both.owner.store.commit(other)
        await state.put("link:a", "bob")
        later = both.begin()
        results = await both.append(Append(state, record(1)), Append(later, record(2)))
        assert [type(result) for result in results] == [WriteConflict, WriteConflict]
        assert await both.bodies() == []
        again = both.begin()
        assert await again.get("link:a") == "ada"
        assert await both.append(Append(again, record(1))) == [None]
        assert both.guest.store.may_conflict
        assert not both.owner.store.may_conflict


async def test_a_closed_file_takes_no_events(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        state = both.begin()
    (result,) = await both.append(Append(state, record(1)))
    assert isinstance(result, Unavailable)


@pytest.mark.parametrize("size", [1, 300])
async def test_many_calls_are_answered_each_with_its_results(tmp_path: Path, size: int) -> None:
    async with pair(tmp_path) as both:
        calls = [
            both.append(*[Append(both.begin(), record(100 * call + number)) for number in range(size)])
            for call in range(3)
        ]
        assert [*map(list, await asyncio.gather(*calls))] == [[None] * size] * 3
        assert (await both.owner.journal.extent()).records == 3 * size
