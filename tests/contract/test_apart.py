"""A journal behind another URL than the state keeps the contract of the journal, and a state has one such journal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import sha1
from pathlib import Path

import pytest

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import ConfigError, LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor
from ingestd.api.store import state_key
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.storage.split_journal import _OWNER, Ownership
from ingestd.testing.appending import NOW
from ingestd.testing.journals import JournalContract
from tests.support.apart import Apart
from tests.support.journals import read_all, running, until
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sqlite_lock import locked

KEY = state_key("test", "shop", "visitor")


def sqlite(path: Path) -> SqliteBackend:
    return SqliteBackend(path, cache=100, busy_timeout=0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


def redis(server: RedisServer, place: Path) -> RedisBackend:
    """The part of the server that belongs to this place."""
    prefix = sha1(str(place).encode(), usedforsecurity=False).hexdigest() + ":"
    return RedisBackend(make_pool(server.url, (), timeout=0.5), prefix=prefix, timeout=0.5, patience=1)


@asynccontextmanager
async def opened(backend: Apart, *, serving: bool = True) -> AsyncIterator[Apart]:
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


class Arrangement:
    """Which back ends there are; the journal's is in a file in any case."""

    kind = "sqlite"

    @pytest.fixture(autouse=True)
    def _serve(self, request: pytest.FixtureRequest) -> None:
        if self.kind == "redis":
            self.server: RedisServer = request.getfixturevalue("server")

    def make(self, place: Path) -> Apart:
        state = redis(self.server, place) if self.kind == "redis" else sqlite(place / "state.db")
        return Apart(state, sqlite(place / "journal.db"))

    def backend(self, place: Path) -> AbstractAsyncContextManager[Apart]:
        return opened(self.make(place))


class Counting(Consumer):
    """Appends of each event how many there have been, by what the state says."""

    name = "deriving"
    max_records = 3

    async def process(self, records: Sequence[Record], step: Step) -> None:
        for record in records:
            if record.type == "event":
                count = int(await step.state.get(KEY) or 0) + 1
                await step.state.put(KEY, str(count))
                step.append(Record("derived", NOW, b"%s %d" % (record.body, count)))


def remove(database: Path) -> None:
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()


@pytest.mark.logs("WARNING events cannot be stored: ", "WARNING consumer: the state is older than the journal: ")
class Steps(Arrangement):
    """A step whose two commits are cut apart happens once, as a whole."""

    async def step(self, backend: Apart, place: Cursor, text: str, position: int) -> None:
        """One that counts in the state how often it was done, and appends that."""
        state = backend.store.begin(NOW, step=True)
        try:
            count = int(await state.get(KEY) or 0) + 1
            await state.put(KEY, str(count))
            record = Record("derived", NOW, f"{text} {count}".encode())
            await backend.journal.commit([record], state, place._replace(position=position))
        except BaseException:
            backend.store.discard(state)
            raise

    async def half_a_step(self, folder: Path, backend: Apart, place: Cursor, text: str, position: int) -> None:
        """One that the journal in that folder does not take."""
        with locked(folder / "journal.db"), pytest.raises(LeaseLost):
            await self.step(backend, place, text, position)
        assert text not in "".join(await self.derived(backend))

    async def derived(self, backend: Apart) -> list[str]:
        return [record.body.decode() for record in await read_all(backend.journal) if record.type == "derived"]

    @pytest.mark.parametrize("trimmed", [0, 3, 8])
    async def test_the_next_daemon_has_the_journal_take_it(self, tmp_path: Path, trimmed: int) -> None:
        """Also where the journal's oldest records are removed, up to amid the step or beyond it."""
        async with self.backend(tmp_path) as backend:
            await backend.journal.commit([Record("event", NOW, b"x")] * 9, backend.store.begin(NOW))
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.step(backend, place, "first", 1)
            await self.half_a_step(tmp_path, backend, place, "second", 5)
            await until(lambda: backend.problem() is None)
            while trimmed and await backend.journal.trim(trimmed, 100):
                pass
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            assert place.position == max(5, trimmed)
            assert await self.derived(backend) == ["first 1", "second 2"]
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            assert place.position == max(5, trimmed)
            await self.step(backend, place, "third", 9)
            assert await self.derived(backend) == ["first 1", "second 2", "third 3"]

    async def test_the_same_daemon_goes_on_when_the_journal_does(self, tmp_path: Path) -> None:
        """What the step wrote is not found by itself, done again."""
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.half_a_step(tmp_path, backend, place, "one", 3)
            with locked(tmp_path / "journal.db"), pytest.raises(Unavailable):
                await backend.journal.acquire_cursor("consumer", "beginning")
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            assert place.position == 3
            await self.step(backend, place, "two", 4)
            assert await self.derived(backend) == ["one 1", "two 2"]

    async def test_where_the_state_does_not_take_it_nothing_has_happened(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            with self.state_away(tmp_path), pytest.raises((Unavailable, LeaseLost)):
                await self.step(backend, place, "one", 3)
            await until(lambda: backend.problem() is None)
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            assert place.position == 0
            await self.step(backend, place, "again", 3)
            assert await self.derived(backend) == ["again 1"]

    async def test_a_state_that_was_put_back_to_what_it_was_is_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As by a server that lost its last second. Once only: from the next step on they agree again."""
        noted = state_key("consumer-step", "", "consumer")
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.step(backend, place, "one", 3)
            earlier = await backend.store.begin(NOW).get(noted)
            assert earlier is not None
            for text, position in (("two", 5), ("three", 8)):
                await self.step(backend, place, text, position)
            state = backend.store.begin(NOW)
            await state.put(noted, earlier)
            await backend.store.commit(state)
        for lost in (True, False):
            async with self.backend(tmp_path) as backend:
                place = await backend.journal.acquire_cursor("consumer", "beginning")
                assert ("records 4 to 8 is lost" in caplog.text) is lost
                assert place.position == 8 + (not lost)
                await self.step(backend, place, "four", 9)
            caplog.clear()

    @pytest.mark.logs("WARNING consumer: the journal is older than the state: it ends at 4, and records up to 9 ")
    async def test_a_step_of_a_journal_that_was_put_back_moves_no_place_beyond_its_end(self, tmp_path: Path) -> None:
        """Its records are kept: the state says that they were made."""
        database, copy = tmp_path / "journal.db", tmp_path / "copy"
        async with self.backend(tmp_path) as backend:
            await backend.journal.commit([Record("event", NOW, b"x")] * 3, backend.store.begin(NOW))
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.step(backend, place, "first", 1)
        copy.write_bytes(database.read_bytes())
        async with self.backend(tmp_path) as backend:
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await backend.journal.commit([Record("event", NOW, b"lost")] * 6, backend.store.begin(NOW))
            await self.half_a_step(tmp_path, backend, place, "second", 9)
        remove(database)
        copy.rename(database)
        async with self.backend(tmp_path) as backend:
            await backend.journal.ensure_cursor("consumer", "beginning")
            await backend.journal.commit([Record("event", NOW, b"new")] * 9, backend.store.begin(NOW))
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 4
            assert await self.derived(backend) == ["first 1", "second 2"]

    async def test_another_journal_takes_nothing_of_it(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await self.half_a_step(
                tmp_path, backend, await backend.journal.acquire_cursor("consumer", "beginning"), "one", 3
            )
        remove(tmp_path / "journal.db")
        async with self.backend(tmp_path) as backend:
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 0
            assert await self.derived(backend) == []

    async def test_a_command_has_the_journal_take_it_unless_a_daemon_does(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await self.half_a_step(
                tmp_path, backend, await backend.journal.acquire_cursor("consumer", "beginning"), "one", 3
            )
            async with opened(self.make(tmp_path), serving=False) as beside:
                await beside.journal.recover()
                assert await self.derived(beside) == []
        async with opened(self.make(tmp_path), serving=False) as alone:
            for _ in range(2):
                await alone.journal.recover()
                assert await self.derived(alone) == ["one 1"]
        async with self.backend(tmp_path) as backend:
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 3
            assert await self.derived(backend) == ["one 1"]

    @pytest.mark.logs("works again after", "deriving: .*; it is tried again")
    async def test_a_consumer_does_everything_once_while_the_journal_fails_now_and_then(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            names = [f"{number}" for number in range(40)]
            async with running(backend, Counting(), patience=20) as (status,):
                for start in range(0, 40, 8):
                    records = [Record("event", NOW, name.encode()) for name in names[start : start + 8]]
                    await backend.journal.commit(records, backend.store.begin(NOW))
                    await asyncio.sleep(0.01)
                    with locked(tmp_path / "journal.db"):
                        await asyncio.sleep(0.2)
                    await until(lambda: backend.problem() is None)
            assert await self.derived(backend) == [f"{name} {number}" for number, name in enumerate(names, 1)]
            assert (status.processed, status.pending, status.lost) == (status.position, 0, 0)

    @contextmanager
    def state_away(self, place: Path) -> Iterator[None]:
        with locked(place / "state.db"):
            yield


class TestApartJournal(Arrangement, JournalContract):
    pass


class TestApartSteps(Steps):
    pass


class TestRedisStateJournal(Arrangement, JournalContract):
    kind = "redis"


class TestRedisStateSteps(Steps):
    kind = "redis"

    @contextmanager
    def state_away(self, place: Path) -> Iterator[None]:
        with self.server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)


# One journal a state


@asynccontextmanager
async def owning(backend: Apart, silence: float = 1.0) -> AsyncIterator[Ownership]:
    """A daemon that has the state, and says so every tenth of a second."""
    ownership = Ownership(backend.store, backend.home, silence=silence, pause=0.1)
    await ownership.take()
    keeping = asyncio.create_task(ownership.keep())
    try:
        yield ownership
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        assert keeping.cancelled()


class TestOwnership(Arrangement):
    kind = "redis"

    @asynccontextmanager
    async def two(self, place: Path) -> AsyncIterator[tuple[Apart, Apart]]:
        """With one state, and a journal each."""
        make = (Apart(redis(self.server, place), sqlite(place / f"{name}.db")) for name in ("one", "other"))
        async with opened(next(make)) as one, opened(next(make)) as other:
            yield one, other

    async def test_of_two_daemons_with_a_journal_each_the_second_is_told(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            with pytest.raises(ConfigError) as raised:
                await Ownership(other.store, other.home, silence=1.0, pause=0.1).take()
            for said in ("[journal] url", "[store] url", f"process {os.getpid()}", "stop that daemon"):
                assert said in str(raised.value)

    async def test_of_two_at_once_one_has_it(self, tmp_path: Path) -> None:
        async def start(backend: Apart) -> None:
            async with owning(backend):
                await asyncio.sleep(0.5)

        async with self.two(tmp_path) as both:
            results = await asyncio.gather(*map(start, both), return_exceptions=True)
            assert {type(result) for result in results} == {ConfigError, type(None)}

    async def test_one_that_stops_lets_the_other_begin_at_once(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other):
            async with owning(one) as ownership:
                pass
            await ownership.release()
            async with asyncio.timeout(1):
                await Ownership(other.store, other.home, silence=60).take()

    async def test_a_dead_one_is_waited_for_but_not_by_its_own_journal(self, tmp_path: Path) -> None:
        loop = asyncio.get_running_loop()
        async with self.two(tmp_path) as (one, other):
            async with owning(one):
                pass
            async with asyncio.timeout(1), owning(one, silence=60):
                pass
            began = loop.time()
            async with owning(other, silence=0.5):
                assert loop.time() - began >= 0.5

    async def test_one_that_was_silent_for_too_long_is_told(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other):
            silent = Ownership(one.store, one.home, pause=0.1)
            await silent.take()
            async with owning(other, silence=0.3):
                async with asyncio.timeout(5):
                    with pytest.raises(ConfigError, match="is in use by process"):
                        await silent.keep()
                await silent.release()  # which is not its own any more
                with pytest.raises(ConfigError):
                    await Ownership(one.store, one.home, pause=0.1).take()

    async def test_one_with_a_copy_of_the_journal_ends_the_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which cannot be told from the daemon that was killed and has come back, but by that one."""
        async with self.two(tmp_path) as (one, _):
            first = Ownership(one.store, one.home, pause=0.1)
            await first.take()
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(os, "getpid", lambda: 2)
                await Ownership(one.store, one.home, pause=0.1).take()
            with pytest.raises(ConfigError, match="in use by process 2 "):
                await asyncio.wait_for(first.keep(), 5)

    @pytest.mark.logs("ERROR the store came back empty")
    async def test_a_state_that_was_wiped_is_taken_anew(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            with self.server.client() as client:
                client.flushall()
                await until(lambda: one.store.losses == other.store.losses == 1)
                await until(lambda: bool([*client.scan_iter(f"*:{_OWNER}")]))
            with pytest.raises(ConfigError):
                await Ownership(other.store, other.home, silence=1.0, pause=0.1).take()

    @pytest.mark.logs("WARNING events cannot be stored: ")
    async def test_it_goes_on_when_the_state_does(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            self.server.signal(signal.SIGSTOP)
            await until(lambda: one.problem() is not None)
            self.server.signal(signal.SIGCONT)
            await until(lambda: one.problem() is None and other.problem() is None)
            with pytest.raises(ConfigError):
                await Ownership(other.store, other.home, silence=1.0, pause=0.1).take()
