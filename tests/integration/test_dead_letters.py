"""Sinks on every back end: each record is in the sink or among its dead letters, and orders are carried out once."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.errors import SinkReject, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal, Start
from ingestd.api.options import Duration
from ingestd.api.sink import Sink
from ingestd.api.store import State
from ingestd.consumers.group import ConsumerStatus
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.dead_letters import DeadLetter, read_letters
from ingestd.delivery.operator_commands import (
    Discard,
    OperatorCommand,
    Replay,
    Retry,
    give_command,
    load_commands,
    set_paused,
)
from ingestd.delivery.options import BatchOptions, FilterOptions, RetryOptions
from ingestd.delivery.progress import Progress, load_last_failure, load_progress
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.storage.split_journal import SplitJournal
from ingestd.testing.records import make_records
from tests.support.apart import Apart
from tests.support.journals import append, running, until
from tests.support.passing_journal import PassingJournal
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sqlite_lock import locked

pytestmark = pytest.mark.logs(
    "sink:shelf: .*; it is tried again",
    "consumers INFO",
    "journal: .*; it is tried again",
    "events cannot be stored",
    "sink:shelf: .* dead letter",
)

NAME = "shelf"
ALL = 10**9


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons that look for orders all the time."""
    monkeypatch.setattr("ingestd.delivery.sink_consumer._LOOK", 0.0)
    monkeypatch.setattr("ingestd.consumers.runner._ATTEND", 0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


# The sink, which outlives its daemons


@dataclass
class Shelf:
    """Where records go, by their positions, and what it does at present."""

    writes: list[list[int]] = field(default_factory=list)
    """What was taken."""
    refused: set[int] = field(default_factory=set)
    poison: set[int] = field(default_factory=set)
    down: bool = False
    stuck: bool = False
    """Whether it takes what it is given, and never says so."""
    tried: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def let_go(self) -> None:
        self.stuck = False
        self.free.set()

    @property
    def taken(self) -> list[int]:
        return [position for write in self.writes for position in write]


class ShelfSink(Sink):
    def __init__(self, shelf: Shelf) -> None:
        super().__init__(NAME, None)
        self.shelf = shelf

    async def open(self) -> None:
        if self.shelf.down:
            raise ConnectionError("nobody opens")

    async def write(self, batch: Sequence[Record]) -> None:
        shelf, positions = self.shelf, [record.position for record in batch]
        shelf.tried += 1
        await asyncio.sleep(0)
        if shelf.down:
            raise ConnectionError("nobody is there")
        reasons = {index: f"no {position}" for index, position in enumerate(positions) if position in shelf.refused}
        if reasons:
            raise SinkReject(reasons)
        if shelf.poison & {*positions}:
            raise KeyError("price")
        shelf.writes.append(positions)
        if shelf.stuck:
            await shelf.free.wait()

    async def check(self) -> None:
        if self.shelf.down:
            raise ConnectionError("nobody is there")


def options(
    *, start: Start = "beginning", attempts: int = 2, most: int = 4, timeout: float = 30.0, **filtered: Any
) -> SinkOptions:
    return SinkOptions(
        type="shelf",
        start=start,
        timeout=Duration(timeout),
        batch=BatchOptions(max_events=most, max_wait=Duration(0.0)),
        retry=RetryOptions(attempts=attempts),
        filter=FilterOptions(**filtered),
    )


@asynccontextmanager
async def daemon(
    backend: Backend, shelf: Shelf, given: SinkOptions | None = None, *, patience: float = 10.0, **kw: Any
) -> AsyncIterator[tuple[SinkConsumer, ConsumerStatus]]:
    """One that has this sink. With `patience=0` it ends in the middle of what it does."""
    consumer = SinkConsumer(ShelfSink(shelf), given or options())
    async with running(backend, consumer, patience=patience, **kw) as (status,):
        yield consumer, status


# What is durable of it


async def progress_of(backend: Backend) -> Progress | None:
    return await load_progress(backend.store.begin(times.now()), NAME)


async def letters_of(backend: Backend) -> list[DeadLetter]:
    progress = await progress_of(backend)
    last = 0 if progress is None else progress.letters
    return [letter async for letter in read_letters(backend.store.begin(times.now()), NAME, 0, last)]


async def place_of(backend: Backend) -> int:
    [place] = [cursor.position for cursor in await backend.journal.cursors() if cursor.name == f"sink:{NAME}"]
    return place


async def give(backend: Backend, *orders: OperatorCommand) -> None:
    for order in orders:
        await give_command(backend.store, NAME, order)


async def pause(backend: Backend, *, paused: bool = True) -> None:
    assert await set_paused(backend.store, NAME, paused=paused)


async def at_rest(backend: Backend, number: int | None = None) -> None:
    """All orders (up to that number) have been carried out, and nothing waits for the sink."""

    async def is_at_rest() -> bool:
        progress, orders = await progress_of(backend), await load_commands(backend.store.begin(times.now()), NAME)
        if (0 if progress is None else progress.command) < (orders.given if number is None else number):
            return False
        return await place_of(backend) == await backend.journal.last()

    deadline = asyncio.get_running_loop().time() + 15
    while not await is_at_rest():
        assert asyncio.get_running_loop().time() < deadline, await progress_of(backend)
        await asyncio.sleep(0.005)


async def assert_nothing_is_missing(
    backend: Backend, shelf: Shelf, *, lost: int = 0, unwanted: Sequence[int] = (), thrown_away: Sequence[int] = ()
) -> None:
    """At rest. `lost` were removed from the journal unseen, `unwanted` are those the filter keeps from it."""
    progress, letters, place = await progress_of(backend), await letters_of(backend), await place_of(backend)
    assert progress is not None
    assert place - progress.began == progress.delivered + progress.filtered + progress.given_up + lost
    assert progress.dead == len(letters)
    assert progress.filtered == len(unwanted)
    there = {*shelf.taken} | {letter.position for letter in letters} | {*thrown_away}
    missing = {*range(progress.began + 1, place + 1)} - there - {*unwanted}
    assert len(missing) == lost
    assert not there & {*unwanted}
    numbers = [letter.number for letter in letters]
    assert numbers == sorted({*numbers})
    assert all(1 <= number <= progress.letters for number in numbers)


# Back ends


class Cut(PassingJournal):
    """A journal that fails at the step of that number (from 1) and ever after, as where the daemon is killed."""

    def __init__(self, journal: Journal, step: int, *, after: bool = False) -> None:
        super().__init__(journal)
        self._left = step
        self._after = after
        """Whether that step is there all the same."""

    @property
    def reached(self) -> bool:
        return self._left <= 0

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        if cursor is not None:
            self._left -= 1
            if self._left < 0 or (self.reached and not self._after):
                raise Unavailable("it is gone")
            position = await super().commit(records, state, cursor)
            if self.reached:
                raise Unavailable("it is gone")
            return position
        return await super().commit(records, state, cursor)


def sqlite(path: Path) -> SqliteBackend:
    return SqliteBackend(path, cache=100, busy_timeout=0.1)


def redis(server: RedisServer, place: Path) -> RedisBackend:
    """The part of the server that belongs to this place."""
    prefix = sha1(str(place).encode(), usedforsecurity=False).hexdigest() + ":"
    return RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)


_visitors = itertools.count(1)


def view(count: int, **members: Any) -> list[Record]:
    """Records of a visitor each."""
    return [make_records(1, anonymousId=f"visitor-{next(_visitors)}", **members)[0] for _ in range(count)]


class Sinks:
    """The promises; a subclass says on which back end."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self.folder = tmp_path
        self.request = request

    def make(self) -> Backend:
        raise NotImplementedError

    def cut(self, backend: Backend, step: int, *, after: bool) -> tuple[Cut, Journal]:
        """The back end's journal, to be cut there; and what the consumers get."""
        journal = Cut(backend.journal, step, after=after)
        return journal, journal

    @asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        backend = self.make()
        await backend.open(serving=True)
        try:
            yield backend
        finally:
            await backend.close()

    # Dead letters

    async def test_what_is_rejected_and_what_is_poison_become_dead_letters_and_all_else_is_delivered(self) -> None:
        shelf = Shelf(refused={2, 3, 11}, poison={6, 10})
        async with self.backend() as backend:
            await append(backend, view(12))
            async with daemon(backend, shelf) as (consumer, status):
                await at_rest(backend)
            await append(backend, view(3))
            async with daemon(backend, shelf) as (again, _):
                await until(lambda: again.delivered == 3)
                assert again.progress is not None
                assert again.progress.dead == 5
            letters = {letter.position: letter for letter in await letters_of(backend)}
            assert {position: letter.reason for position, letter in letters.items()} == {
                2: "no 2", 3: "no 3", 11: "no 11", 6: "KeyError: 'price'", 10: "KeyError: 'price'",
            }  # fmt: skip
            assert [*letters] == sorted(letters)
            for record in await backend.journal.read(0, 12):
                if record.position in letters:
                    assert letters[record.position].to_record() == record
            assert letters[2].attempts == 1
            assert letters[6].attempts >= 3
            assert {*shelf.taken} == {*range(1, 16)} - {2, 3, 6, 10, 11}
            assert (consumer.delivered, consumer.given_up, status.processed) == (7, 5, 12)
            await assert_nothing_is_missing(backend, shelf)

    async def test_poison_that_comes_alone_waits_until_the_sink_takes_another_record(self) -> None:
        """What the sink had before proves nothing: it may recognise that, and take nothing new."""
        shelf = Shelf(poison={1, 4})
        async with self.backend() as backend:
            await append(backend, view(1))
            async with daemon(backend, shelf, patience=0) as (_, status):
                await until(lambda: status.failures > 5)
                assert (await letters_of(backend), shelf.taken) == ([], [])
                await append(backend, view(2))
                await at_rest(backend)
            await append(backend, view(1))
            async with daemon(backend, shelf) as (_, status):
                await until(lambda: status.failures > 5)
                assert [letter.position for letter in await letters_of(backend)] == [1]
                await append(backend, view(1))
                await at_rest(backend)
            assert [letter.position for letter in await letters_of(backend)] == [1, 4]
            await assert_nothing_is_missing(backend, shelf)

    async def test_poison_alone_in_what_the_filter_leaves_is_told_apart(self) -> None:
        """All that is in hand but one is not for this sink, and what it would take comes far behind."""
        shelf = Shelf(poison={1})
        async with self.backend() as backend:
            await append(backend, [*view(1), *view(30, key="Other"), *view(1)])
            async with daemon(backend, shelf, options(keys=("Page View",))):
                await at_rest(backend)
            assert [letter.position for letter in await letters_of(backend)] == [1]
            assert {*shelf.taken} == {32}
            await assert_nothing_is_missing(backend, shelf, unwanted=range(2, 32))

    async def test_an_outage_of_any_length_makes_none(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(9))
            async with daemon(backend, shelf, patience=0) as (_, status):
                await at_rest(backend)
                shelf.down = True
                await append(backend, view(9))
                await until(lambda: status.failures > 12)
            async with daemon(backend, shelf, patience=0) as (_, status):
                await until(lambda: status.failures > 12)
                assert await letters_of(backend) == []
                shelf.down = False
                await at_rest(backend)
            assert [*dict.fromkeys(shelf.taken)] == [*range(1, 19)]
            assert await letters_of(backend) == []
            await assert_nothing_is_missing(backend, shelf)

    async def test_what_a_filter_keeps_is_counted_though_batches_end_anywhere(self) -> None:
        shelf = Shelf(refused={6}, poison={8})
        records = [view(1, key="Other" if number % 3 else "Page View")[0] for number in range(40)]
        wanted = [position for position in range(1, 41) if (position - 1) % 3 == 0]
        shelf.refused, shelf.poison = {wanted[2]}, {wanted[5], wanted[6]}
        async with self.backend() as backend:
            await append(backend, records)
            async with daemon(backend, shelf, options(most=7, keys=("Page View",))) as (consumer, _):
                await at_rest(backend)
            assert {letter.position for letter in await letters_of(backend)} == shelf.refused | shelf.poison
            assert consumer.filtered == 40 - len(wanted)
            unwanted = [position for position in range(1, 41) if position not in wanted]
            await assert_nothing_is_missing(backend, shelf, unwanted=unwanted)

    # Orders

    async def test_dead_letters_are_tried_again_when_somebody_says_so(self) -> None:
        shelf = Shelf(refused={2, 3, 5, 7})
        async with self.backend() as backend:
            await append(backend, view(9))
            async with daemon(backend, shelf) as (consumer, status):
                await at_rest(backend)
                shelf.refused = {5}
                await give(backend, Retry(last=3))  # the fourth had not been there yet
                await at_rest(backend)
                assert shelf.taken[-2:] == [2, 3]
                [fifth, seventh] = await letters_of(backend)
                assert (fifth.number, fifth.position, fifth.attempts, seventh.attempts) == (3, 5, 2, 1)
                progress = await progress_of(backend)
                assert progress is not None
                assert (progress.retried, progress.given_up, progress.dead) == (2, 4, 2)
                shelf.refused = set()
                await give(backend, Retry(last=ALL))
                await at_rest(backend)
                assert await letters_of(backend) == []
                assert (consumer.delivered, consumer.given_up, status.processed) == (5, 4, 9)  # these are no deliveries
                await append(backend, view(1))
                await at_rest(backend)
            await assert_nothing_is_missing(backend, shelf)

    async def test_a_retry_of_poison_keeps_nothing_waiting_and_it_stays_a_dead_letter(self) -> None:
        """Nor the orders behind it. The daemon has written nothing yet."""
        shelf = Shelf(poison={2})
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf):
                await at_rest(backend)
            [before] = await letters_of(backend)
            await append(backend, view(20))
            await give(backend, Retry(last=ALL), Replay(first=1, last=1))
            async with daemon(backend, shelf):
                await at_rest(backend)
            [letter] = await letters_of(backend)
            assert (letter.number, letter.position) == (before.number, 2)
            assert letter.attempts > before.attempts
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.command, progress.replayed, progress.retried) == (2, 1, 0)
            await assert_nothing_is_missing(backend, shelf)

    async def test_a_retry_waits_for_a_sink_that_is_away_and_so_do_the_records(self) -> None:
        shelf = Shelf(refused={1})
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf) as (_, status):
                await at_rest(backend)
                shelf.down, shelf.refused = True, set()
                await give(backend, Retry(last=ALL))
                await until(lambda: status.failures > 3)
                await append(backend, view(2))
                failures = status.failures
                await until(lambda: status.failures > failures + 8)
                assert len(await letters_of(backend)) == 1
                assert await place_of(backend) == 2
                shelf.down = False
                await at_rest(backend)
            assert await letters_of(backend) == []
            assert {*shelf.taken} == {1, 2, 3, 4}
            await assert_nothing_is_missing(backend, shelf)

    async def test_dead_letters_are_thrown_away_when_somebody_says_so(self) -> None:
        shelf = Shelf(refused={1, 2, 3, 4})
        async with self.backend() as backend:
            await append(backend, view(5))
            async with daemon(backend, shelf):
                await at_rest(backend)
                await give(backend, Discard(last=ALL, letters=(2, 4, 4, 99, -1)))
                await at_rest(backend)
                assert [letter.number for letter in await letters_of(backend)] == [1, 3]
                await give(backend, Discard(last=2), Discard(last=2))
                await at_rest(backend)
                assert [letter.number for letter in await letters_of(backend)] == [3]
                progress = await progress_of(backend)
                assert progress is not None
                assert (progress.discarded, progress.dead) == (3, 1)
            await assert_nothing_is_missing(backend, shelf, thrown_away=[1, 2, 4])

    async def test_several_orders_are_carried_out_one_after_the_other_each_once(self) -> None:
        shelf = Shelf(refused={2, 4, 6, 8})
        async with self.backend() as backend:
            await append(backend, view(9))
            async with daemon(backend, shelf):
                await at_rest(backend)
                shelf.writes.clear()
                shelf.refused = set()
                await pause(backend)
                await give(
                    backend,
                    Retry(last=ALL, letters=(1, 2)),
                    Discard(last=ALL, letters=(2, 3)),  # the second has been taken by then
                    Replay(first=1, last=3),
                    Retry(last=ALL),
                    Discard(last=ALL),
                    Replay(first=9, last=9),
                )
                await pause(backend, paused=False)
                await at_rest(backend)
            assert shelf.taken == [2, 4, 1, 2, 3, 8, 9]
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.retried, progress.discarded, progress.replayed, progress.command) == (3, 1, 4, 6)
            async with daemon(backend, shelf):  # and not again
                await append(backend, view(1))
                await at_rest(backend)
            assert shelf.taken == [2, 4, 1, 2, 3, 8, 9, 10]
            assert await progress_of(backend) == Progress(
                0, delivered=6, given_up=4, replayed=4, retried=3, discarded=1, letters=4, command=6
            )

    async def test_orders_of_many_at_once_are_all_carried_out(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(4))
            async with daemon(backend, shelf):
                await at_rest(backend)
                orders = [Replay(first=1, last=2) for _ in range(8)]
                numbers = await asyncio.gather(*(give_command(backend.store, NAME, order) for order in orders))
                assert sorted(numbers) == [*range(1, 9)]
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            assert progress.replayed == 16
            orders_left = await load_commands(backend.store.begin(times.now()), NAME)
            await give(backend, Discard(last=0))
            left = await load_commands(backend.store.begin(times.now()), NAME)
            assert len(left.waiting) <= len(orders_left.waiting)  # what has been carried out goes with the next one

    async def test_records_are_replayed_as_the_filter_and_keys_say(self) -> None:
        shelf = Shelf()
        keys = ["Page View", "Product Viewed", "Order Completed"]
        async with self.backend() as backend:
            await append(backend, [view(1, key=keys[number % 3])[0] for number in range(18)])
            async with daemon(backend, shelf, options(keys=(keys[0], keys[1]))):
                await at_rest(backend)
                shelf.writes.clear()
                await give(backend, Replay(first=2, last=14))
                await at_rest(backend)
                assert shelf.taken == [2, 4, 5, 7, 8, 10, 11, 13, 14]
                shelf.writes.clear()
                await give(backend, Replay(first=-5, last=8, keys=(keys[1], keys[2])))
                await at_rest(backend)
                assert shelf.taken == [2, 5, 8]
                shelf.writes.clear()
                await give(backend, Replay(first=1, last=18, keys=("Nothing",)), Replay(first=9, last=3))
                await at_rest(backend)
                assert shelf.taken == []
            unwanted = [position for position in range(1, 19) if position % 3 == 0]
            shelf.writes.append([position for position in range(1, 19) if position % 3])
            await assert_nothing_is_missing(backend, shelf, unwanted=unwanted)

    async def test_a_replay_ends_where_the_sink_is(self) -> None:
        """What it has not had comes in its turn, and only then; what is not there yet is not waited for."""
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(5))
            async with daemon(backend, shelf):
                await at_rest(backend)
                shelf.writes.clear()
                await give(backend, Replay(first=4, last=ALL), Replay(first=ALL, last=ALL + 1))
                await at_rest(backend)
                assert shelf.taken == [4, 5]
                await append(backend, view(1))
                await at_rest(backend)
            assert shelf.taken == [4, 5, 6]
            await give(backend, Replay(first=1, last=ALL))
            await append(backend, view(30))
            shelf.writes.clear()
            async with daemon(backend, shelf):
                await at_rest(backend)
            firsts = [position for position in dict.fromkeys(shelf.taken) if position > 6]
            assert firsts == [*range(7, 37)]

    async def test_replayed_records_may_become_dead_letters_too(self) -> None:
        shelf = Shelf(refused={2})
        async with self.backend() as backend:
            await append(backend, view(6))
            async with daemon(backend, shelf) as (_, status):
                await at_rest(backend)
                shelf.refused, shelf.poison = {2, 5}, {6}
                failures = status.failures
                await give(backend, Replay(first=1, last=6))
                await until(lambda: status.failures > failures + 5)
                assert [letter.position for letter in await letters_of(backend)] == [2, 2, 5]
                await append(backend, view(1))  # only something new tells whether the sink takes anything
                await at_rest(backend)
                assert [letter.position for letter in await letters_of(backend)] == [2, 2, 5, 6]
                shelf.refused, shelf.poison = set(), set()
                await give(backend, Retry(last=ALL))
                await at_rest(backend)
            assert await letters_of(backend) == []
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.replayed, progress.given_up, progress.given_up_again, progress.retried) == (3, 1, 3, 4)
            await assert_nothing_is_missing(backend, shelf)

    @pytest.mark.parametrize("knows", [True, False])
    async def test_an_outage_amid_a_replay_or_a_retry_makes_no_dead_letters_and_is_told(self, knows: bool) -> None:
        """Whether the sink says that it is its own trouble, and whether records it has been given come again or not."""

        class Full(ShelfSink):
            async def write(self, batch: Sequence[Record]) -> None:
                full = {record.position for record in batch} - known
                if self.shelf.down and full:
                    raise SinkRetry("no room") if knows else OSError("no room")
                await super().write(batch)

            async def check(self) -> None: ...

        shelf = Shelf(refused={2})
        async with self.backend() as backend:
            await append(backend, view(6))
            known = {1, 3, 4, 5, 6}
            consumer = SinkConsumer(Full(shelf), options(most=2))
            async with running(backend, consumer) as (status,):
                await at_rest(backend)
                shelf.down, shelf.refused = True, set()
                known -= {5}  # the sink has forgotten one
                await give(backend, Replay(first=1, last=6))
                await append(backend, view(3))
                await until(lambda: status.failures > 40)
                assert [letter.position for letter in await letters_of(backend)] == [2]
                await give(backend, Retry(last=ALL))
                await self._told(backend, "no room" if knows else "OSError: no room")
                shelf.down = False
                await at_rest(backend)
            assert await letters_of(backend) == []
            await assert_nothing_is_missing(backend, shelf)

    async def test_what_is_not_in_the_journal_any_more_is_not_replayed(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(12))
            async with daemon(backend, shelf):
                await at_rest(backend)
                while await backend.journal.trim(8, 100):
                    pass
                shelf.writes.clear()
                await give(backend, Replay(first=1, last=5), Replay(first=3, last=10), Replay(first=1, last=12))
                await at_rest(backend)
                assert shelf.taken == [9, 10, 9, 10, 11, 12]
                while await backend.journal.trim(12, 100):
                    pass
                await give(backend, Replay(first=1, last=12))
                await at_rest(backend)
            assert shelf.taken == [9, 10, 9, 10, 11, 12]

    @pytest.mark.parametrize("start", ["now", "beginning"])
    async def test_a_sink_that_never_had_a_record_carries_out_orders_too(self, start: Start) -> None:
        shelf = Shelf(refused={6})
        async with self.backend() as backend:
            await append(backend, view(5))
            if start == "beginning":
                while await backend.journal.trim(5, 100):
                    pass
            await give(backend, Retry(last=ALL), Discard(last=ALL), Replay(first=1, last=5, keys=("Nothing",)))
            async with daemon(backend, shelf, options(start=start)):
                await at_rest(backend)
                assert await progress_of(backend) == Progress(5, command=3)
                await append(backend, view(3))
                await at_rest(backend)
            assert await progress_of(backend) == Progress(5, delivered=2, given_up=1, letters=1, command=3)
            await assert_nothing_is_missing(backend, shelf)

    # Pausing

    async def test_a_paused_sink_gets_nothing_until_it_is_resumed(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            async with daemon(backend, shelf) as (_, status):
                await append(backend, view(2))
                await at_rest(backend)
                await pause(backend)
                await until(lambda: status.paused)
                await append(backend, [replace(record, at=1000) for record in view(3)])
                await give(backend, Replay(first=1, last=2))
                await until(lambda: status.pending == 3 and status.oldest_at == 1000)
                assert status.oldest_pending_seconds > 0
                assert not await set_paused(backend.store, NAME, paused=True)
                assert shelf.taken == [1, 2]
            async with daemon(backend, shelf) as (_, status):  # it is not waited for at the end either
                await until(lambda: status.paused and status.oldest_pending_seconds > 0)
                assert shelf.taken == [1, 2]
                await pause(backend, paused=False)
                await at_rest(backend)
                assert not status.paused
            assert {*shelf.taken[2:4]} == {1, 2}
            assert shelf.taken[4:] == [3, 4, 5]
            await assert_nothing_is_missing(backend, shelf)

    async def test_one_that_fails_is_left_alone_while_it_is_paused(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf) as (_, status):
                await at_rest(backend)
                shelf.down = True
                await append(backend, view(3))
                await until(lambda: status.failures > 3)
                await pause(backend)
                await until(lambda: status.paused)
                tried = shelf.tried
                await asyncio.sleep(0.1)
                assert shelf.tried == tried
                shelf.down = False
                await pause(backend, paused=False)
                await at_rest(backend)
            assert shelf.taken == [1, 2, 3, 4, 5]
            await assert_nothing_is_missing(backend, shelf)

    async def test_one_that_cannot_be_opened_is_told_and_can_be_paused(self) -> None:
        shelf = Shelf(down=True)
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf, patience=0) as (_, status):
                await until(lambda: status.failures > 3)
                await self._told(backend, "ConnectionError: nobody opens")
                await until(lambda: status.oldest_at is not None)
                await pause(backend)
                await until(lambda: status.paused)
                shelf.down = False
                await pause(backend, paused=False)
                await at_rest(backend)
                await self._told(backend, None)
            await assert_nothing_is_missing(backend, shelf)

    async def _told(self, backend: Backend, reason: str | None) -> None:
        deadline = asyncio.get_running_loop().time() + 10
        while True:
            trouble = await load_last_failure(backend.store.begin(times.now()), NAME)
            if (None if trouble is None else trouble.reason) == reason:
                return
            assert asyncio.get_running_loop().time() < deadline, trouble
            await asyncio.sleep(0.005)

    # Trouble

    async def test_why_a_sink_does_not_get_on_is_told_until_it_does(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf, patience=0) as (_, status):
                await at_rest(backend)
                assert await load_last_failure(backend.store.begin(times.now()), NAME) is None
                shelf.down = True
                before = times.now()
                await append(backend, view(2))
                await self._told(backend, "ConnectionError: nobody is there")
                await until(lambda: status.failures > 5)
                trouble = await load_last_failure(backend.store.begin(times.now()), NAME)
                assert trouble is not None
                assert before <= trouble.since <= trouble.at <= times.now()
                assert trouble.failures >= 1
            async with daemon(backend, shelf) as (_, status):
                await until(lambda: status.failures > 2)
                await self._told(backend, "ConnectionError: nobody opens")
                shelf.down = False
                await at_rest(backend)
                await self._told(backend, None)
            await assert_nothing_is_missing(backend, shelf)

    async def test_it_is_told_during_a_pause_that_the_sink_asked_for(self) -> None:
        class Busy(ShelfSink):
            async def write(self, batch: Sequence[Record]) -> None:
                raise SinkRetry("come again in an hour", after=3600)

        async with self.backend() as backend:
            await append(backend, view(2))
            consumer = SinkConsumer(Busy(Shelf()), options())
            async with running(backend, consumer, patience=0) as (status,):
                await self._told(backend, "come again in an hour")
                await pause(backend)
                await until(lambda: status.paused)
                assert status.failures == 1

    async def test_a_reason_that_cannot_be_stored_as_it_is_stops_nothing(self) -> None:
        """Names of files may hold what is no text, and an error page can be of any length."""

        class Odd(ShelfSink):
            async def write(self, batch: Sequence[Record]) -> None:
                if self.shelf.down:
                    raise OSError("caf\udce9" + "x" * 100_000)
                await super().write(batch)

        shelf = Shelf()
        async with self.backend() as backend:
            consumer = SinkConsumer(Odd(shelf), options())
            async with running(backend, consumer) as (status,):
                await until(lambda: status.held)
                shelf.down = True
                await append(backend, view(2))
                await self._told(backend, ("OSError: caf?" + "x" * 500)[:500])
                shelf.down = False
                await at_rest(backend)
                await self._told(backend, None)
            await assert_nothing_is_missing(backend, shelf)

    # Crashes

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    async def test_a_crash_at_any_step_loses_nothing_and_does_nothing_twice(self, after: bool) -> None:
        """Between a write and its commit, or behind that; of records and of orders."""
        step = 0
        reached = True
        while reached:
            step += 1
            self.folder = self.request.getfixturevalue("tmp_path") / f"{step}"
            self.folder.mkdir()
            reached = await self._crash(step, after=after)
        assert step > 8

    async def _crash(self, step: int, *, after: bool) -> bool:
        shelf = Shelf(refused={2, 3}, poison={5})
        async with self.backend() as backend:
            await append(backend, view(9))
            cut, journal = self.cut(backend, step, after=after)
            ending = asyncio.Event()

            async def go_through() -> None:
                await at_rest(backend)
                shelf.refused = {3, 5}
                await give(backend, Retry(last=ALL), Replay(first=4, last=8), Discard(last=ALL, letters=(2,)))
                await at_rest(backend)
                ending.set()

            async with daemon(backend, shelf, patience=0, journal=journal):
                going = asyncio.create_task(go_through())
                await until(lambda: cut.reached or ending.is_set())
                going.cancel()
                await asyncio.wait([going])
        reached = cut.reached
        async with self.backend() as backend:
            async with daemon(backend, shelf):
                shelf.refused = {3, 5}
                await at_rest(backend)
                orders = await load_commands(backend.store.begin(times.now()), NAME)
                wanted: list[OperatorCommand] = [
                    Retry(last=ALL), Replay(first=4, last=8), Discard(last=ALL, letters=(2,)),
                ]  # fmt: skip
                await give(backend, *wanted[orders.given :])
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            if progress.given_up == 3:  # else the second was only there when it had been let in
                assert (progress.delivered, progress.retried, progress.discarded) == (6, 1, 1)
                assert (progress.replayed, progress.given_up_again) == (4, 1)
                assert [letter.position for letter in await letters_of(backend)] == [5, 5]
            assert progress.command == 3
            thrown_away = [3] if progress.discarded else []
            await assert_nothing_is_missing(backend, shelf, thrown_away=thrown_away)
        return reached

    async def test_a_write_that_never_returned_comes_again(self) -> None:
        shelf = Shelf(stuck=True)
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf, patience=0):
                await until(lambda: shelf.taken)
        shelf.stuck = False
        async with self.backend() as backend:
            async with daemon(backend, shelf):
                await at_rest(backend)
            assert shelf.taken == [1, 2, 3, 1, 2, 3]
            await assert_nothing_is_missing(backend, shelf)

    # Retention

    @pytest.mark.parametrize("up_to", [1, 3, 4, 6, 12])
    async def test_what_is_removed_meanwhile_is_counted_and_what_is_in_hand_is_delivered(self, up_to: int) -> None:
        shelf = Shelf(down=True)
        async with self.backend() as backend:
            await append(backend, view(12))
            consumer = SinkConsumer(ShelfSink(shelf), options(attempts=100))
            async with removing(backend, consumer) as (status, remove):
                await until(lambda: status.in_hand == 4)
                await remove(up_to)
                shelf.down = False
                await append(backend, view(2))
                await at_rest(backend)
                lost = max(0, up_to - 4)
                assert status.lost == lost
                assert shelf.taken == [1, 2, 3, 4, *range(max(5, up_to + 1), 15)]
                await assert_nothing_is_missing(backend, shelf, lost=lost)

    async def test_poison_is_told_apart_in_what_has_been_removed(self) -> None:
        shelf = Shelf(poison={2})
        async with self.backend() as backend:
            shelf.down = True
            await append(backend, view(8))
            consumer = SinkConsumer(ShelfSink(shelf), options())
            async with removing(backend, consumer) as (status, remove):
                await until(lambda: status.in_hand == 4)
                await remove(8)
                shelf.down = False
                await append(backend, view(1))
                await at_rest(backend)
                [letter] = await letters_of(backend)
                assert letter.position == 2
                shelf.poison = set()
                await give(backend, Retry(last=ALL))
                await at_rest(backend)
                await assert_nothing_is_missing(backend, shelf, lost=status.lost)

    # At random

    @pytest.mark.parametrize("seed", range(3))
    async def test_whatever_happens_each_record_is_in_the_sink_or_a_dead_letter(self, seed: int) -> None:
        chance = random.Random(seed)
        shelf = Shelf()
        thrown_away: set[int] = set()
        last = 0
        for _ in range(4):
            async with self.backend() as backend, daemon(backend, shelf, patience=0):
                for _ in range(8):
                    match chance.randrange(8):
                        case 0 | 1:
                            last = await append(backend, view(chance.randrange(1, 9)))
                            some = range(max(1, last - 8), last + 1)
                            shelf.refused |= {chance.choice(some)} if chance.random() < 0.5 else set()
                            shelf.poison |= {chance.choice(some)} if chance.random() < 0.3 else set()
                        case 2:
                            shelf.down = not shelf.down
                        case 3:
                            await set_paused(backend.store, NAME, paused=chance.random() < 0.3)
                        case 4:
                            await give(backend, Retry(last=ALL))
                        case 5 if last:
                            first = chance.randrange(1, last + 1)
                            await give(backend, Replay(first=first, last=chance.randrange(first, last + 1)))
                        case 6:
                            for each in (shelf.refused, shelf.poison):
                                each.difference_update([*each][:1])
                        case _:
                            await asyncio.sleep(chance.random() * 0.05)
        shelf.down = False
        async with self.backend() as backend:
            await set_paused(backend.store, NAME, paused=False)
            async with daemon(backend, shelf):
                await append(backend, view(2))
                await at_rest(backend)
                await assert_nothing_is_missing(backend, shelf)
                shelf.refused, shelf.poison = set(), set()
                await give(backend, Retry(last=ALL))
                await at_rest(backend)
                assert await letters_of(backend) == []
            await assert_nothing_is_missing(backend, shelf, thrown_away=[*thrown_away])
            assert {*shelf.taken} == {*range(1, last + 3)}


@asynccontextmanager
async def removing(
    backend: Backend, consumer: SinkConsumer
) -> AsyncIterator[tuple[ConsumerStatus, Callable[[int], Any]]]:
    """Consumers at work, and what removes records as retention does."""
    async with running(backend, consumer) as (status,):

        async def remove(up_to: int) -> None:
            first = (await backend.journal.extent()).first
            while first <= up_to:
                first += await backend.journal.trim(up_to, 100)
                status.trimmed(first - 1)

        yield status, remove


class TestSqlite(Sinks):
    def make(self) -> Backend:
        return sqlite(self.folder / "ingestd.db")

    async def test_a_busy_sink_takes_orders_from_commands(self) -> None:
        """It moves on many times before the daemon comes to what a command asks for."""
        shelf = Shelf(refused={1})
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf, options(most=1)) as (_, status):
                await at_rest(backend)
                beside = self.make()
                await beside.open(serving=False)
                try:
                    giving = asyncio.create_task(
                        give(beside, Retry(last=ALL), Discard(last=ALL), Replay(first=2, last=2))
                    )
                    before = status.processed
                    while not giving.done():
                        await append(backend, view(20))
                        await asyncio.sleep(0.01)
                    await giving
                    assert status.processed > before + 20
                finally:
                    await beside.close()
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.command, progress.discarded, progress.replayed) == (3, 1, 1)
            await assert_nothing_is_missing(backend, shelf, thrown_away=[1])

    async def test_what_is_written_is_not_written_again_because_the_store_fails(self) -> None:
        shelf = Shelf(stuck=True, refused={2})
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf) as (_, status):
                await until(lambda: shelf.taken)
                await append(backend, view(2))
                with locked(self.folder / "ingestd.db"):
                    shelf.let_go()
                    await until(lambda: status.failures > 3)
                    assert shelf.taken == [1, 3]
                await at_rest(backend)
            assert shelf.taken == [1, 3, 4, 5]
            assert [letter.position for letter in await letters_of(backend)] == [2]
            await assert_nothing_is_missing(backend, shelf)


class TestRedis(Sinks):
    def make(self) -> Backend:
        return redis(self.request.getfixturevalue("server"), self.folder)

    async def test_nothing_is_written_while_the_store_is_away(self) -> None:
        shelf = Shelf(refused={1})
        server: RedisServer = self.request.getfixturevalue("server")
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf) as (_, status):
                await at_rest(backend)
                await pause(backend)
                await until(lambda: status.paused)
                await append(backend, view(2))
                await give(backend, Retry(last=ALL))
                await pause(backend, paused=False)
                server.signal(signal.SIGSTOP)
                try:
                    tried = shelf.tried
                    await asyncio.sleep(1.0)
                    assert shelf.tried <= tried + 1  # which had begun
                finally:
                    server.signal(signal.SIGCONT)
                await until(lambda: backend.problem() is None)
                await at_rest(backend)
            assert await load_last_failure(backend.store.begin(times.now()), NAME) is None
            await assert_nothing_is_missing(backend, shelf)

    async def test_another_daemon_goes_on_amid_an_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first one hangs, and has lost its place when it comes back."""
        monkeypatch.setattr("ingestd.plugins.stores.redis.journal.LEASE", 1.5)
        monkeypatch.setattr("ingestd.plugins.stores.redis.journal._KEEP", 0.1)
        shelf = Shelf(refused={1, 2})
        async with self.backend() as backend, self.backend() as other:
            await append(backend, view(3))
            async with daemon(backend, shelf, patience=0) as (first, _):
                await at_rest(backend)
                shelf.refused, shelf.stuck = set(), True
                await give(backend, Retry(last=ALL))
                await until(lambda: 2 in shelf.taken)
                assert isinstance(backend, RedisBackend)
                for task in backend._tasks:
                    task.cancel()
                shelf.stuck = False
                async with daemon(other, shelf) as (second, status):
                    await until(lambda: status.held)
                    await at_rest(other)
                    assert second.progress is not None
                    assert second.progress.retried == 2
                    await append(other, view(2))
                    await at_rest(other)
                    assert first.progress is None or first.progress.retried == 0
            await assert_nothing_is_missing(other, shelf)


class _Apart(Sinks):
    def make_state(self) -> Backend:
        raise NotImplementedError

    def make(self) -> Backend:
        self.beside = sqlite(self.folder / "journal.db")
        return Apart(self.make_state(), self.beside)

    def cut(self, backend: Backend, step: int, *, after: bool) -> tuple[Cut, Journal]:
        """Between the two commits."""
        assert isinstance(backend, Apart)
        journal = Cut(self.beside.journal, step, after=after)
        return journal, SplitJournal(journal, backend.home, backend.store)

    async def test_an_order_whose_commit_is_cut_in_two_is_carried_out_once(self) -> None:
        shelf = Shelf(refused={1, 2})
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf) as (consumer, status):
                await at_rest(backend)
                shelf.refused = {2}
                held = status.held
                await give(backend, Retry(last=ALL))
                with locked(self.folder / "journal.db"):
                    await until(lambda: not status.held)
                await until(lambda: backend.problem() is None)
                await at_rest(backend)
                assert held
                await append(backend, view(1))
                await at_rest(backend)
                await until(lambda: consumer.progress is not None and consumer.progress.delivered == 2)
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.retried, progress.command) == (1, 1)
            [letter] = await letters_of(backend)
            assert (letter.position, letter.attempts) == (2, 2)
            await assert_nothing_is_missing(backend, shelf)


class TestApart(_Apart):
    def make_state(self) -> Backend:
        return sqlite(self.folder / "state.db")


class TestRedisState(_Apart):
    def make_state(self) -> Backend:
        return redis(self.request.getfixturevalue("server"), self.folder)
