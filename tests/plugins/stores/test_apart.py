"""A journal with another URL than the state keeps the contract of journals, and a state has only one such journal."""

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
from ingestd.support.periodic import TIMING
from ingestd.testing.backends import NOW
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


def redis(server: RedisServer, folder: Path) -> RedisBackend:
    """A back end on the server, with a prefix for this folder."""
    prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
    return RedisBackend(make_pool(server.url, (), timeout=0.5), prefix=prefix, timeout=0.5, patience=1)


@asynccontextmanager
async def opened(backend: Apart, *, serving: bool = True) -> AsyncIterator[Apart]:
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


class Arrangement:
    """The two back ends of a test. The journal is always in a file."""

    kind = "sqlite"

    @pytest.fixture(autouse=True)
    def _serve(self, request: pytest.FixtureRequest) -> None:
        if self.kind == "redis":
            self.server: RedisServer = request.getfixturevalue("server")

    def make(self, folder: Path) -> Apart:
        state = redis(self.server, folder) if self.kind == "redis" else sqlite(folder / "state.db")
        return Apart(state, sqlite(folder / "journal.db"))

    def backend(self, folder: Path) -> AbstractAsyncContextManager[Apart]:
        return opened(self.make(folder))


class Counting(Consumer):
    """Appends a record for each event with the number of events so far, which the state counts."""

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
    """A step takes effect once and as a whole, even if only one of its two commits succeeds."""

    async def step(self, backend: Apart, cursor: Cursor, text: str, position: int) -> None:
        """Makes a step that counts itself in the state and appends the count."""
        state = backend.store.begin(NOW, step=True)
        try:
            count = int(await state.get(KEY) or 0) + 1
            await state.put(KEY, str(count))
            record = Record("derived", NOW, f"{text} {count}".encode())
            await backend.journal.commit([record], state, cursor._replace(position=position))
        except BaseException:
            backend.store.discard(state)
            raise

    async def half_a_step(self, folder: Path, backend: Apart, cursor: Cursor, text: str, position: int) -> None:
        """Makes a step whose commit in the journal fails."""
        with locked(folder / "journal.db"), pytest.raises(LeaseLost):
            await self.step(backend, cursor, text, position)
        assert text not in "".join(await self.derived(backend))

    async def derived(self, backend: Apart) -> list[str]:
        return [record.body.decode() for record in await read_all(backend.journal) if record.type == "derived"]

    @pytest.mark.parametrize("trimmed", [0, 3, 8])
    async def test_the_next_daemon_completes_half_a_step_in_the_journal(self, tmp_path: Path, trimmed: int) -> None:
        """The oldest records may have been removed meanwhile, up to the middle of the step or beyond it."""
        async with self.backend(tmp_path) as backend:
            await backend.journal.commit([Record("event", NOW, b"x")] * 9, backend.store.begin(NOW))
            place = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.step(backend, place, "first", 1)
            await self.half_a_step(tmp_path, backend, place, "second", 5)
            await until(lambda: backend.problem() is None)
            while trimmed and await backend.journal.trim(trimmed, 100):
                pass
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert cursor.position == max(5, trimmed)
            assert await self.derived(backend) == ["first 1", "second 2"]
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert cursor.position == max(5, trimmed)
            await self.step(backend, cursor, "third", 9)
            assert await self.derived(backend) == ["first 1", "second 2", "third 3"]

    async def test_the_same_daemon_completes_half_a_step_when_the_journal_works_again(self, tmp_path: Path) -> None:
        """The repeated step does not see its own writes."""
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.half_a_step(tmp_path, backend, cursor, "one", 3)
            with locked(tmp_path / "journal.db"), pytest.raises(Unavailable):
                await backend.journal.acquire_cursor("consumer", "beginning")
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert cursor.position == 3
            await self.step(backend, cursor, "two", 4)
            assert await self.derived(backend) == ["one 1", "two 2"]

    async def test_a_step_whose_commit_in_the_state_fails_has_no_effect(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            with self.state_away(tmp_path), pytest.raises((Unavailable, LeaseLost)):
                await self.step(backend, cursor, "one", 3)
            await until(lambda: backend.problem() is None)
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert cursor.position == 0
            await self.step(backend, cursor, "again", 3)
            assert await self.derived(backend) == ["again 1"]

    async def test_a_state_that_was_set_back_is_reported(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A server that lost its last second causes this. After the next step state and journal agree again."""
        noted = state_key("consumer-step", "", "consumer")
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            await self.step(backend, cursor, "one", 3)
            earlier = await backend.store.begin(NOW).get(noted)
            assert earlier is not None
            for text, position in (("two", 5), ("three", 8)):
                await self.step(backend, cursor, text, position)
            state = backend.store.begin(NOW)
            await state.put(noted, earlier)
            await backend.store.commit(state)
        for lost in (True, False):
            async with self.backend(tmp_path) as backend:
                cursor = await backend.journal.acquire_cursor("consumer", "beginning")
                assert ("records 4 to 8 is lost" in caplog.text) is lost
                assert cursor.position == 8 + (not lost)
                await self.step(backend, cursor, "four", 9)
            caplog.clear()

    @pytest.mark.logs("WARNING consumer: the journal is older than the state: it ends at 4, and records up to 9 ")
    async def test_a_step_of_a_journal_that_was_set_back_moves_no_cursor_beyond_its_end(self, tmp_path: Path) -> None:
        """The records of the step are kept, because the state has noted them."""
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

    async def test_another_journal_does_not_take_half_a_step(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await self.half_a_step(
                tmp_path, backend, await backend.journal.acquire_cursor("consumer", "beginning"), "one", 3
            )
        remove(tmp_path / "journal.db")
        async with self.backend(tmp_path) as backend:
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 0
            assert await self.derived(backend) == []

    async def test_a_command_completes_half_a_step_unless_a_daemon_runs(self, tmp_path: Path) -> None:
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
    async def test_a_consumer_processes_records_once_while_the_journal_fails_sometimes(self, tmp_path: Path) -> None:
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
    def state_away(self, folder: Path) -> Iterator[None]:
        with locked(folder / "state.db"):
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
    def state_away(self, folder: Path) -> Iterator[None]:
        with self.server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)


# A state has one journal


def owner(backend: Apart, silence: float = 10.0) -> Ownership:
    """The ownership of a daemon that has waited for so many seconds for another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TIMING, "ownership_silence", silence)
        return Ownership(backend.store, backend.home)


@asynccontextmanager
async def owning(backend: Apart, silence: float = 1.0) -> AsyncIterator[Ownership]:
    """A daemon that owns the state, and renews the ownership every tenth of a second."""
    ownership = owner(backend, silence)
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

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TIMING, "ownership", 0.1)

    @asynccontextmanager
    async def two(self, folder: Path) -> AsyncIterator[tuple[Apart, Apart]]:
        """Two back ends with one state and two journals."""
        make = (Apart(redis(self.server, folder), sqlite(folder / f"{name}.db")) for name in ("one", "other"))
        async with opened(next(make)) as one, opened(next(make)) as other:
            yield one, other

    async def test_a_second_daemon_with_another_journal_is_refused(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            with pytest.raises(ConfigError) as raised:
                await owner(other, 1.0).take()
            for said in ("[journal] url", "[store] url", f"process {os.getpid()}", "stop that daemon"):
                assert said in str(raised.value)

    async def test_one_of_two_simultaneous_daemons_owns_the_state(self, tmp_path: Path) -> None:
        async def start(backend: Apart) -> None:
            async with owning(backend):
                await asyncio.sleep(0.5)

        async with self.two(tmp_path) as both:
            results = await asyncio.gather(*map(start, both), return_exceptions=True)
            assert {type(result) for result in results} == {ConfigError, type(None)}

    async def test_after_a_stop_the_other_daemon_begins_at_once(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other):
            async with owning(one) as ownership:
                pass
            await ownership.release()
            async with asyncio.timeout(1):
                await owner(other, 60).take()

    async def test_a_daemon_waits_for_a_dead_owner_unless_it_has_the_same_journal(self, tmp_path: Path) -> None:
        loop = asyncio.get_running_loop()
        async with self.two(tmp_path) as (one, other):
            async with owning(one):
                pass
            async with asyncio.timeout(1), owning(one, silence=60):
                pass
            began = loop.time()
            async with owning(other, silence=0.5):
                assert loop.time() - began >= 0.5

    async def test_a_daemon_that_was_silent_for_too_long_loses_the_state(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other):
            silent = owner(one)
            await silent.take()
            async with owning(other, silence=0.3):
                async with asyncio.timeout(5):
                    with pytest.raises(ConfigError, match="is in use by process"):
                        await silent.keep()
                await silent.release()  # the state belongs to the other daemon now
                with pytest.raises(ConfigError):
                    await owner(one).take()

    async def test_a_daemon_with_a_copy_of_the_journal_ends_the_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It looks like the first daemon after a kill. Only the first daemon can notice the difference."""
        async with self.two(tmp_path) as (one, _):
            first = owner(one)
            await first.take()
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(os, "getpid", lambda: 2)
                await owner(one).take()
            with pytest.raises(ConfigError, match="in use by process 2 "):
                await asyncio.wait_for(first.keep(), 5)

    @pytest.mark.logs("ERROR the store came back empty")
    async def test_a_state_that_was_wiped_is_owned_again(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            with self.server.client() as client:
                client.flushall()
                await until(lambda: one.store.losses == other.store.losses == 1)
                await until(lambda: bool([*client.scan_iter(f"*:{_OWNER}")]))
            with pytest.raises(ConfigError):
                await owner(other, 1.0).take()

    @pytest.mark.logs("WARNING events cannot be stored: ")
    async def test_the_owner_continues_when_the_state_works_again(self, tmp_path: Path) -> None:
        async with self.two(tmp_path) as (one, other), owning(one):
            self.server.signal(signal.SIGSTOP)
            await until(lambda: one.problem() is not None)
            self.server.signal(signal.SIGCONT)
            await until(lambda: one.problem() is None and other.problem() is None)
            with pytest.raises(ConfigError):
                await owner(other, 1.0).take()
