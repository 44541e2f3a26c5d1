"""Sinks on every back end: each record is in the sink or a dead letter, and each command is executed once."""

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

import msgspec
import pytest
from msgspec.structs import replace

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.errors import SinkReject, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal, Start
from ingestd.api.options import Duration
from ingestd.api.sink import Sink
from ingestd.api.store import State, state_key
from ingestd.consumers.group import ConsumerStatus
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.dead_letters import (
    BYTES_KIND,
    RECORD_GONE,
    DeadLetter,
    load_letter_bytes,
    read_letters,
    whole_record,
)
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
from ingestd.delivery.progress import LAST_FAILURE, PROGRESS, Progress
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.storage.split_journal import SplitJournal
from ingestd.support.periodic import TIMING
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
    """Daemons that look for operator commands all the time."""
    monkeypatch.setattr(TIMING, "sink_commands", 0.0)
    monkeypatch.setattr(TIMING, "next_action", 0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


# The sink, which keeps its content across daemons


@dataclass
class Shelf:
    """The content and the present behaviour of a sink. Records are represented by their positions."""

    writes: list[list[int]] = field(default_factory=list)
    """The taken batches."""
    refused: set[int] = field(default_factory=set)
    poison: set[int] = field(default_factory=set)
    down: bool = False
    stuck: bool = False
    """Whether it takes batches without returning from `write`."""
    tried: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)
    refused_later: asyncio.Event | None = None
    """The event for which it waits before it refuses."""

    def release(self) -> None:
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
            if shelf.refused_later is not None:
                await shelf.refused_later.wait()
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
    """A daemon with this sink. With `patience=0` its end interrupts its work."""
    consumer = SinkConsumer(ShelfSink(shelf), given or options())
    async with running(backend, consumer, patience=patience, **kw) as (status,):
        yield consumer, status


# The durable data of the sink


async def progress_of(backend: Backend) -> Progress | None:
    return await PROGRESS.load(backend.store.begin(times.now()), NAME)


async def letters_of(backend: Backend) -> list[DeadLetter]:
    progress = await progress_of(backend)
    last = 0 if progress is None else progress.letters
    return [letter async for letter in read_letters(backend.store.begin(times.now()), NAME, 0, last)]


async def cursor_of(backend: Backend) -> int:
    [position] = [cursor.position for cursor in await backend.journal.cursors() if cursor.name == f"sink:{NAME}"]
    return position


async def give(backend: Backend, *commands: OperatorCommand) -> None:
    for command in commands:
        await give_command(backend.store, NAME, command)


async def pause(backend: Backend, *, paused: bool = True) -> None:
    assert await set_paused(backend.store, NAME, paused=paused)


async def at_rest(backend: Backend, number: int | None = None) -> None:
    """Wait until all commands (up to `number`) are executed, and no record is pending."""

    async def is_at_rest() -> bool:
        progress, commands = await progress_of(backend), await load_commands(backend.store.begin(times.now()), NAME)
        if (0 if progress is None else progress.command) < (commands.given if number is None else number):
            return False
        return await cursor_of(backend) == await backend.journal.last()

    deadline = asyncio.get_running_loop().time() + 15
    while not await is_at_rest():
        assert asyncio.get_running_loop().time() < deadline, await progress_of(backend)
        await asyncio.sleep(0.005)


async def assert_nothing_is_missing(
    backend: Backend, shelf: Shelf, *, lost: int = 0, unwanted: Sequence[int] = (), thrown_away: Sequence[int] = ()
) -> None:
    """Check a sink at rest: the journal lost `lost` records before delivery, and the filter leaves out `unwanted`."""
    progress, letters, cursor = await progress_of(backend), await letters_of(backend), await cursor_of(backend)
    assert progress is not None
    assert cursor - progress.began == progress.delivered + progress.filtered + progress.given_up + lost
    assert progress.dead == len(letters)
    assert progress.filtered == len(unwanted)
    there = {*shelf.taken} | {letter.position for letter in letters} | {*thrown_away}
    missing = {*range(progress.began + 1, cursor + 1)} - there - {*unwanted}
    assert len(missing) == lost
    assert not there & {*unwanted}
    numbers = [letter.number for letter in letters]
    assert numbers == sorted({*numbers})
    assert all(1 <= number <= progress.letters for number in numbers)


# Back ends


class Cut(PassingJournal):
    """A journal that fails at step `step` (from 1) and all later ones, like a killed daemon."""

    def __init__(self, journal: Journal, step: int, *, after: bool = False) -> None:
        super().__init__(journal)
        self._left = step
        self._after = after
        """Whether this step is stored despite the failure."""

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


def redis(server: RedisServer, folder: Path) -> RedisBackend:
    """A back end with a separate prefix for the folder of each test."""
    prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
    return RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)


_visitors = itertools.count(1)


def view(count: int, **members: Any) -> list[Record]:
    """Records of different visitors."""
    return [make_records(1, anonymousId=f"visitor-{next(_visitors)}", **members)[0] for _ in range(count)]


class Sinks:
    """The tests. A subclass defines their back end."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self.folder = tmp_path
        self.request = request

    def make(self) -> Backend:
        raise NotImplementedError

    def cut(self, backend: Backend, step: int, *, after: bool) -> tuple[Cut, Journal]:
        """The back end's journal, cut at `step`, and the journal for the consumers."""
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

    async def test_rejected_and_poison_records_become_dead_letters_and_all_others_are_delivered(self) -> None:
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

    async def test_a_record_that_is_blanked_while_the_sink_refuses_it_becomes_a_blank_letter(self) -> None:
        shelf = Shelf(refused={2, 3}, stuck=True)
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf, options(most=1)):
                await until(lambda: shelf.taken == [1])
                shelf.refused_later = asyncio.Event()
                shelf.release()
                await until(lambda: shelf.tried == 2)
                theirs = (await backend.journal.read(1, 1))[0]
                blank = {**theirs.decode(), "anonymousId": None, "erased": True}
                await backend.journal.replace([(theirs, msgspec.json.encode(blank))])
                shelf.refused_later.set()
                await at_rest(backend)
            letters = await letters_of(backend)
            assert [letter.reason for letter in letters] == ["removed by ingestd forget", "no 3"]
            assert letters[0].to_record().decode() == blank

    async def test_beyond_their_bound_letters_are_without_their_records_which_the_journal_has(self) -> None:
        shelf = Shelf(refused={*range(1, 7)})
        async with self.backend() as backend:
            async with daemon(backend, shelf) as (consumer, _):
                consumer.max_letter_bytes = 6000
                await append(backend, view(6, context={"more": "x" * 3000}, userId="u" * 1000))
                await at_rest(backend)
                records, letters = await backend.journal.read(0, 6), await letters_of(backend)
                assert [bool(letter.omitted) for letter in letters] == [False] * 1 + [True] * 5
                for record, letter in zip(records, letters, strict=True):
                    assert letter.record_size == len(record.body)
                    assert await whole_record(letter, backend.journal) == record
                    ids = letter.to_record().decode()
                    assert (ids["id"], ids["anonymousId"]) == (record.decode()["id"], record.decode()["anonymousId"])
                assert sum(letter.size for letter in letters) < 7000
                await until(lambda: consumer.letter_bytes == sum(letter.size for letter in letters))
                await backend.journal.trim(4, 100)
                shelf.refused = set()
                await give(backend, Retry(last=ALL), Retry(last=ALL))
                await at_rest(backend)
                assert shelf.taken == [1, 5, 6]
                gone = await letters_of(backend)
                assert [letter.position for letter in gone] == [2, 3, 4]
                assert all(letter.reason == f"{RECORD_GONE}; no {letter.position}" for letter in gone)
                assert await whole_record(gone[0], backend.journal) is None
            state = backend.store.begin(times.now())
            await state.delete(state_key(BYTES_KIND, "", NAME))  # as an earlier version leaves the store
            await backend.store.commit(state)
            async with daemon(backend, shelf) as (again, _):
                await until(lambda: again.letter_bytes == sum(letter.size for letter in gone))
                await give(backend, Discard(last=ALL))
                await at_rest(backend)
                await until(lambda: again.letter_bytes == 0)
                assert await load_letter_bytes(backend.store.begin(times.now()), NAME) == 0

    async def test_a_poison_record_alone_waits_until_the_sink_takes_another_record(self) -> None:
        """A record that the sink had before proves nothing: the sink may recognise it, and refuse all new ones."""
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

    async def test_a_poison_record_is_recognised_if_the_filter_leaves_no_other_in_its_batch(self) -> None:
        """The filter leaves out all other records of the batch. The next wanted record comes far behind."""
        shelf = Shelf(poison={1})
        async with self.backend() as backend:
            await append(backend, [*view(1), *view(30, key="Other"), *view(1)])
            async with daemon(backend, shelf, options(keys=("Page View",))):
                await at_rest(backend)
            assert [letter.position for letter in await letters_of(backend)] == [1]
            assert {*shelf.taken} == {32}
            await assert_nothing_is_missing(backend, shelf, unwanted=range(2, 32))

    async def test_an_outage_of_any_length_makes_no_dead_letters(self) -> None:
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

    async def test_filtered_records_are_counted_regardless_of_the_ends_of_batches(self) -> None:
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

    # Operator commands

    async def test_a_command_retries_dead_letters(self) -> None:
        shelf = Shelf(refused={2, 3, 5, 7})
        async with self.backend() as backend:
            await append(backend, view(9))
            async with daemon(backend, shelf) as (consumer, status):
                await at_rest(backend)
                shelf.refused = {5}
                await give(backend, Retry(last=3))  # only the letters up to number 3
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
                assert (consumer.delivered, consumer.given_up, status.processed) == (5, 4, 9)  # a retry is no delivery
                await append(backend, view(1))
                await at_rest(backend)
            await assert_nothing_is_missing(backend, shelf)

    async def test_a_retried_poison_record_stays_a_dead_letter_and_delays_no_record(self) -> None:
        """Nor later commands. It even holds for a daemon that has written nothing yet."""
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

    async def test_retries_and_records_wait_for_an_unreachable_sink(self) -> None:
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
                assert await cursor_of(backend) == 2
                shelf.down = False
                await at_rest(backend)
            assert await letters_of(backend) == []
            assert {*shelf.taken} == {1, 2, 3, 4}
            await assert_nothing_is_missing(backend, shelf)

    async def test_a_command_discards_dead_letters(self) -> None:
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

    async def test_commands_are_executed_in_order_each_once(self) -> None:
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
                    Discard(last=ALL, letters=(2, 3)),  # letter 2 is delivered by then
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
            async with daemon(backend, shelf):  # the commands are not repeated
                await append(backend, view(1))
                await at_rest(backend)
            assert shelf.taken == [2, 4, 1, 2, 3, 8, 9, 10]
            assert await progress_of(backend) == Progress(
                0, delivered=6, given_up=4, replayed=4, retried=3, discarded=1, letters=4, command=6
            )

    async def test_simultaneous_commands_are_all_executed(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(4))
            async with daemon(backend, shelf):
                await at_rest(backend)
                commands = [Replay(first=1, last=2) for _ in range(8)]
                numbers = await asyncio.gather(*(give_command(backend.store, NAME, each) for each in commands))
                assert sorted(numbers) == [*range(1, 9)]
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            assert progress.replayed == 16
            before = await load_commands(backend.store.begin(times.now()), NAME)
            await give(backend, Discard(last=0))
            left = await load_commands(backend.store.begin(times.now()), NAME)
            assert len(left.waiting) <= len(before.waiting)  # a new command removes the executed ones

    async def test_a_replay_respects_the_filter_and_its_keys(self) -> None:
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

    async def test_a_replay_ends_at_the_cursor_of_the_sink(self) -> None:
        """Later records come with normal delivery. A replay does not wait for records that do not exist yet."""
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
                await append(backend, view(1))  # only a new record proves that the sink takes others
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
    async def test_an_outage_during_a_replay_or_retry_makes_no_dead_letters_and_is_reported(self, knows: bool) -> None:
        """With and without an error that blames the sink, and with records that it knows or has forgotten."""

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
                known -= {5}  # the sink has forgotten record 5
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

    async def test_a_replay_skips_records_that_left_the_journal(self) -> None:
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
    async def test_a_sink_without_any_record_executes_commands_too(self, start: Start) -> None:
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
            async with daemon(backend, shelf) as (_, status):  # its end does not wait for the paused sink either
                await until(lambda: status.paused and status.oldest_pending_seconds > 0)
                assert shelf.taken == [1, 2]
                await pause(backend, paused=False)
                await at_rest(backend)
                assert not status.paused
            assert {*shelf.taken[2:4]} == {1, 2}
            assert shelf.taken[4:] == [3, 4, 5]
            await assert_nothing_is_missing(backend, shelf)

    async def test_a_failing_sink_gets_no_attempts_while_it_is_paused(self) -> None:
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

    async def test_a_sink_that_cannot_be_opened_is_reported_and_can_be_paused(self) -> None:
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
            trouble = await LAST_FAILURE.load(backend.store.begin(times.now()), NAME)
            if (None if trouble is None else trouble.reason) == reason:
                return
            assert asyncio.get_running_loop().time() < deadline, trouble
            await asyncio.sleep(0.005)

    # The last failure

    async def test_the_last_failure_is_shown_until_the_sink_works_again(self) -> None:
        shelf = Shelf()
        async with self.backend() as backend:
            await append(backend, view(2))
            async with daemon(backend, shelf, patience=0) as (_, status):
                await at_rest(backend)
                assert await LAST_FAILURE.load(backend.store.begin(times.now()), NAME) is None
                shelf.down = True
                before = times.now()
                await append(backend, view(2))
                await self._told(backend, "ConnectionError: nobody is there")
                await until(lambda: status.failures > 5)
                trouble = await LAST_FAILURE.load(backend.store.begin(times.now()), NAME)
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

    async def test_a_sink_that_asked_for_a_long_pause_can_be_paused_meanwhile(self) -> None:
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

    async def test_a_reason_that_cannot_be_stored_unchanged_stops_nothing(self) -> None:
        """The names of files may have invalid characters, and error pages may have any length."""

        class Odd(ShelfSink):
            async def write(self, batch: Sequence[Record]) -> None:
                if self.shelf.down:
                    raise OSError("caf\udce9" + "x" * 100_000)
                await super().write(batch)

        shelf = Shelf()
        async with self.backend() as backend:
            consumer = SinkConsumer(Odd(shelf), options())
            async with running(backend, consumer) as (status,):
                await append(backend, view(1))
                await until(lambda: status.position == 1)  # it is open
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
        """A crash before or after the commit of a step, with records and with commands."""
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
                commands = await load_commands(backend.store.begin(times.now()), NAME)
                wanted: list[OperatorCommand] = [
                    Retry(last=ALL), Replay(first=4, last=8), Discard(last=ALL, letters=(2,)),
                ]  # fmt: skip
                await give(backend, *wanted[commands.given :])
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            if progress.given_up == 3:  # otherwise record 2 came after `refused` had changed
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
    async def test_removed_records_count_as_lost_except_the_batch_in_hand_which_is_delivered(self, up_to: int) -> None:
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

    async def test_a_poison_record_is_recognised_even_if_its_batch_has_left_the_journal(self) -> None:
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

    # Random operations

    @pytest.mark.parametrize("seed", range(3))
    async def test_after_random_operations_each_record_is_in_the_sink_or_a_dead_letter(self, seed: int) -> None:
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
    """Running consumers, and a function that removes records like retention."""
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

    async def test_a_busy_sink_executes_operator_commands(self) -> None:
        """Records keep coming and the cursor keeps moving until the daemon has executed the requests of commands."""
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
                    while not giving.done() or status.processed <= before + 20:
                        await append(backend, view(20))
                        await asyncio.sleep(0.01)
                    await giving
                finally:
                    await beside.close()
                await at_rest(backend)
            progress = await progress_of(backend)
            assert progress is not None
            assert (progress.command, progress.discarded, progress.replayed) == (3, 1, 1)
            await assert_nothing_is_missing(backend, shelf, thrown_away=[1])

    async def test_a_failing_store_causes_no_repeated_write(self) -> None:
        shelf = Shelf(stuck=True, refused={2})
        async with self.backend() as backend:
            await append(backend, view(3))
            async with daemon(backend, shelf) as (_, status):
                await until(lambda: shelf.taken)
                await append(backend, view(2))
                with locked(self.folder / "ingestd.db"):
                    shelf.release()
                    await until(lambda: status.failures > 3)
                    assert shelf.taken == [1, 3]
                await at_rest(backend)
            assert shelf.taken == [1, 3, 4, 5]
            assert [letter.position for letter in await letters_of(backend)] == [2]
            await assert_nothing_is_missing(backend, shelf)


class TestRedis(Sinks):
    def make(self) -> Backend:
        return redis(self.request.getfixturevalue("server"), self.folder)

    async def test_nothing_is_written_while_the_store_is_unreachable(self) -> None:
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
                    assert shelf.tried <= tried + 1  # one write had begun
                finally:
                    server.signal(signal.SIGCONT)
                await until(lambda: backend.problem() is None)
                await at_rest(backend)
            assert await LAST_FAILURE.load(backend.store.begin(times.now()), NAME) is None
            await assert_nothing_is_missing(backend, shelf)

    async def test_another_daemon_continues_an_unfinished_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first daemon hangs, and has lost its cursor when it wakes up."""
        monkeypatch.setattr(TIMING, "redis_lease", 1.5)
        monkeypatch.setattr(TIMING, "redis_heartbeat", 0.1)
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


class TestApart(Sinks):
    """The state is on Redis, and the journal in a file."""

    def make(self) -> Backend:
        self.beside = sqlite(self.folder / "journal.db")
        return Apart(redis(self.request.getfixturevalue("server"), self.folder), self.beside)

    def cut(self, backend: Backend, step: int, *, after: bool) -> tuple[Cut, Journal]:
        """The cut is between the commits of state and journal."""
        assert isinstance(backend, Apart)
        journal = Cut(self.beside.journal, step, after=after)
        return journal, SplitJournal(journal, backend.home, backend.store)

    async def test_a_command_interrupted_between_its_two_commits_is_executed_once(self) -> None:
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
