"""Failing commits: dependent transactions are refused, others are not, and the daemon recovers alone."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import DuplicateMessage, Failed, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.api.store import Field, State
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.plugins.stores.sqlite.batch import read_records
from ingestd.testing.backends import append_each
from tests.support.disks import small_disk
from tests.support.journals import until
from tests.support.sqlite_lock import locked

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon


@asynccontextmanager
async def opened(folder: Path, cache: int = 100) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(folder / "ingestd.db", cache=cache, busy_timeout=0.1)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


def record(text: str) -> Record:
    return Record("event", NOW, text.encode())


async def put(backend: SqliteBackend, key: str, value: str) -> State:
    state = backend.store.begin(NOW)
    await state.put(key, value)
    return state


async def stored_ids(folder: Path) -> list[str]:
    """The ids in the file, regardless of the memory."""
    with closing(sqlite3.connect(folder / "ingestd.db")) as connection:
        return [found.body.decode() for found in read_records(connection, 0, 100_000)]


async def ids(backend: SqliteBackend) -> list[str]:
    return [found.body.decode() for found in await backend.journal.read(0, 100_000)]


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Let no file grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.logs("ingestd.sqlite WARNING events cannot be stored: ")
@pytest.mark.parametrize("trouble", [locked, no_room])
async def test_a_failed_commit_refuses_all_dependent_transactions(
    tmp_path: Path, trouble: Callable[[Path], Any]
) -> None:
    async with opened(tmp_path) as backend:
        await backend.journal.commit([record("before")], await put(backend, "old", "durable"))
        writer = await put(backend, "new", "lost")
        overwriter = await put(backend, "old", "lost")
        reader = backend.store.begin(NOW)
        assert await reader.get("new") == "lost"
        bystander = backend.store.begin(NOW)
        assert await bystander.get("third") is None
        with trouble(backend.path):
            results = await asyncio.gather(
                backend.journal.commit([record("lost")], writer),
                backend.store.commit(overwriter),
                backend.store.commit(reader),
                backend.store.commit(bystander),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [Unavailable, Unavailable, Unavailable, type(None)]
            assert backend.problem()
            with pytest.raises(Unavailable):  # refused without another attempt
                await backend.store.commit(reader)
            fresh = backend.store.begin(NOW)
            assert (await fresh.get("new"), await fresh.get("old")) == (None, "durable")
        await until(lambda: backend.problem() is None)  # the back end recovers without any event
        assert await ids(backend) == ["before"]
        await backend.journal.commit([record("after")], await put(backend, "new", "kept"))
    async with opened(tmp_path) as backend:
        state = backend.store.begin(NOW)
        assert (await state.get("new"), await state.get("old")) == ("kept", "durable")
        assert await ids(backend) == ["before", "after"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, megabytes=1):
        yield tmp_path


@pytest.mark.logs("ingestd.sqlite WARNING events cannot be stored: database or disk is full")
async def test_a_full_disk_loses_no_stored_event_and_the_back_end_recovers(disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 400_000)
    stored = []
    async with opened(disk) as backend:

        async def fill() -> None:
            for number in range(1000):
                await backend.journal.commit([record(f"{number}" + " " * 5000)], await put(backend, f"{number}", "x"))
                stored.append(number)

        with pytest.raises(Unavailable, match="full"):
            await fill()
        assert "full" in str(backend.problem())
        ballast.unlink()
        await until(lambda: backend.problem() is None)
        assert [int(text) for text in await ids(backend)] == stored
        await backend.journal.commit([record("after")], await put(backend, "after", "x"))
    async with opened(disk) as backend:
        assert [text.strip() for text in await ids(backend)] == [*map(str, stored), "after"]
        assert await backend.store.begin(NOW).get(str(stored[-1])) == "x"
        assert await backend.store.begin(NOW).get(str(stored[-1] + 1)) is None


async def _bad_value(state: State) -> list[Record]:
    await state.put("bad", "\ud800")
    return []


async def _bad_key(state: State) -> list[Record]:
    await state.put("\ud800", "value")
    return []


async def _bad_field(state: State) -> list[Record]:
    await state.merge("bad", {"name": Field(1, "\ud800")})
    return []


async def _bad_life(state: State) -> list[Record]:
    await state.put("bad", "value", 2**63)
    return []


async def _bad_record(_: State) -> list[Record]:
    return [record("good part"), Record("event", 2**63, b"{}")]


async def _bad_type(_: State) -> list[Record]:
    return [Record("event", NOW, object())]  # type: ignore[arg-type]  # a faulty plugin might do this


@pytest.mark.logs("ingestd.sqlite ERROR one event could not be stored")
@pytest.mark.parametrize("bad", [_bad_value, _bad_key, _bad_field, _bad_life, _bad_record, _bad_type])
async def test_one_unstorable_transaction_of_a_commit_fails_alone(
    tmp_path: Path, bad: Callable[[State], Coroutine[Any, Any, list[Record]]]
) -> None:
    async with opened(tmp_path) as backend:
        culprit = backend.store.begin(NOW)
        await culprit.put("shared", "of the culprit")
        records = await bad(culprit)
        dependent = backend.store.begin(NOW)
        await dependent.get("shared")
        without_trace = await put(backend, "behind", "of the culprit")
        await without_trace.get("shared")
        good = [await put(backend, f"good {number}", "kept") for number in range(20)]
        results = await asyncio.wait_for(
            asyncio.gather(
                *(backend.journal.commit([record(f"{n}")], state) for n, state in enumerate(good[:10])),
                backend.journal.commit(records, culprit),
                backend.journal.commit([record("dependent")], dependent),
                *(backend.journal.commit([record(f"{n}")], state) for n, state in enumerate(good[10:], 10)),
                return_exceptions=True,
            ),
            10,
        )
        assert isinstance(results[10], Failed)
        assert isinstance(results[11], Unavailable)
        positions = [result for result in results if isinstance(result, int)]
        assert len(set(positions)) == 20
        assert backend.problem() is None
        assert await backend.store.begin(NOW).get("shared") is None
    async with opened(tmp_path) as backend:
        assert await ids(backend) == [f"{n}" for n in range(20)]
        state = backend.store.begin(NOW)
        assert [await state.get(f"good {n}") for n in range(20)] == ["kept"] * 20


@pytest.mark.logs("ingestd.sqlite ERROR one event could not be stored")
@pytest.mark.parametrize("bad", [_bad_value, _bad_key, _bad_field, _bad_life, _bad_record, _bad_type])
async def test_one_unstorable_append_of_many_fails_alone(
    tmp_path: Path, bad: Callable[[State], Coroutine[Any, Any, list[Record]]]
) -> None:
    async with opened(tmp_path) as backend:
        culprit = await put(backend, "shared", "of the culprit")
        worst = [record("culprit"), *await bad(culprit)][-1]
        dependent = backend.store.begin(NOW)
        await dependent.get("shared")
        without_trace = await put(backend, "behind", "of the culprit")
        await without_trace.get("shared")
        good = [Append(await put(backend, f"good {n}", "kept"), record(f"{n}")) for n in range(20)]
        without_record = Append(await put(backend, "without a record", "kept"))
        failing = [Append(culprit, worst), Append(dependent, record("dependent")), Append(without_trace)]
        together = [*good[:10], *failing, without_record, *good[10:]]
        beside = asyncio.ensure_future(backend.journal.commit([record("beside")], await put(backend, "beside", "kept")))
        errors = await asyncio.wait_for(append_each(backend.journal, together), 10)
        assert [index for index, error in enumerate(errors) if error is not None] == [10, 11, 12]
        assert [type(error) for error in errors[10:13]] == [Failed, Unavailable, Unavailable]
        await beside
        assert backend.problem() is None
        assert backend.database.commits is not None
        assert backend.database.commits.last == 21
        assert await backend.store.begin(NOW).get("shared") is None
        assert [found.body.decode() for found in await backend.journal.read(0, 100)] == await stored_ids(tmp_path)
    async with opened(tmp_path) as backend:
        assert sorted(await ids(backend)) == sorted(["beside", *(f"{n}" for n in range(20))])
        state = backend.store.begin(NOW)
        assert [await state.get(f"good {n}") for n in range(20)] == ["kept"] * 20
        assert [await state.get(key) for key in ("without a record", "shared", "behind")] == ["kept", None, None]


@pytest.mark.logs("ingestd.sqlite ERROR one event could not be stored")
@pytest.mark.parametrize("late", [False, True], ids=["known", "not yet known"])
async def test_of_many_appends_only_readers_of_a_failed_write_are_refused(tmp_path: Path, *, late: bool) -> None:
    go_on = threading.Event()
    async with opened(tmp_path) as backend:
        culprit = await put(backend, "shared", "of the culprit")
        await _bad_value(culprit)
        dependent = backend.store.begin(NOW)
        await dependent.get("shared")
        held = asyncio.ensure_future(backend.database.connections.change(lambda _: go_on.wait(10)))
        failing = asyncio.ensure_future(backend.journal.commit([record("culprit")], culprit))
        await until(lambda: (entry := backend.database.entries.known("shared")) is not None and entry.in_flight)
        together = [Append(await put(backend, f"good {n}", "kept"), record(f"{n}")) for n in range(5)]
        together.insert(2, Append(dependent, record("dependent")))
        if late:
            appending = asyncio.ensure_future(append_each(backend.journal, together))
            await asyncio.sleep(0.01)
        go_on.set()
        assert await held
        with pytest.raises(Failed):
            await failing
        errors = await (appending if late else append_each(backend.journal, together))
        assert [type(error) for error in errors] == [*[type(None)] * 2, Unavailable, *[type(None)] * 3]
        assert await ids(backend) == [f"{n}" for n in range(5)]
    async with opened(tmp_path) as backend:
        assert await ids(backend) == [f"{n}" for n in range(5)]


@pytest.mark.logs("ingestd.sqlite WARNING events cannot be stored: ")
async def test_appends_that_could_not_be_stored_leave_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        await backend.journal.commit([record("before")], await put(backend, "before", "kept"))
        lost = [Append(await put(backend, f"{n}", "lost"), record(f"{n}")) for n in range(5)]
        with locked(backend.path):
            assert [type(error) for error in await append_each(backend.journal, lost)] == [Unavailable] * 5
        await until(lambda: backend.problem() is None)
        state = backend.store.begin(NOW)
        assert [await state.get(f"{n}") for n in range(5)] == [None] * 5
        kept = [Append(await put(backend, f"{n}", "kept"), record(f"{n}")) for n in range(5)]
        before = backend.database.statistics.units.sum
        assert await append_each(backend.journal, kept) == [None] * 5
        assert backend.database.statistics.units.sum == before + 5
    async with opened(tmp_path) as backend:
        assert await ids(backend) == ["before", *(f"{n}" for n in range(5))]
    late = [Append(backend.store.begin(NOW), record("late"))]
    assert [type(error) for error in await append_each(backend.journal, late)] == [Unavailable]


async def test_no_idempotency_key_is_durable_before_its_record(tmp_path: Path) -> None:
    """The entry of the first key is in memory. The entry of the second must be read, which takes long."""
    go_on = threading.Event()
    async with opened(tmp_path) as backend:
        journal, store = backend.journal, backend.store
        states = [store.begin(NOW), store.begin(NOW)]
        assert await journal.find_duplicate("message:a", states[0]) is None
        together = [
            Append(state, record(f"{n}"), IdempotencyKey(f"message:{name}", f"{n}", 1000))
            for n, (state, name) in enumerate(zip(states, "ab", strict=True))
        ]
        held = asyncio.ensure_future(backend.database.connections.read(lambda _: go_on.wait(10)))
        appending = asyncio.ensure_future(append_each(journal, together))
        try:
            other = store.begin(NOW)
            await asyncio.sleep(0.01)
            assert await journal.find_duplicate("message:a", other) == "0"
            await store.commit(other)
            assert await stored_ids(tmp_path) == ["0"]
        finally:
            go_on.set()
        assert await held
        assert await appending == [None, None]
        assert await stored_ids(tmp_path) == ["0", "1"]


async def test_of_many_appends_only_duplicates_are_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        journal, store = backend.journal, backend.store
        claims = [IdempotencyKey(f"message:{name}", name, 1000) for name in "abc"]
        together = [Append(store.begin(NOW), record(claim.value), claim) for claim in claims]
        for each, claim in zip(together, claims, strict=True):
            assert await journal.find_duplicate(claim.key, each.state) is None
        first = Append(store.begin(NOW), record("first"), claims[1]._replace(value="first"))
        assert await append_each(journal, [first]) == [None]
        commits = backend.database.statistics.stored
        errors = await append_each(journal, together)
        assert backend.database.statistics.stored == commits + 1
        assert [type(error) for error in errors] == [type(None), DuplicateMessage, type(None)]
        assert await stored_ids(tmp_path) == ["first", "a", "c"]
    async with opened(tmp_path) as backend:
        state = backend.store.begin(NOW)
        assert [await backend.journal.find_duplicate(claim.key, state) for claim in claims] == ["a", "first", "c"]


async def test_a_discard_during_a_commit_hides_no_committed_value(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        for number in range(100):
            committing = asyncio.ensure_future(backend.store.commit(await put(backend, "key", f"kept {number}")))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            backend.store.discard(await put(backend, "key", "undone"))
            # If the discard comes before the writer has taken the commit, both are undone, and the commit fails.
            found = await backend.store.begin(NOW).get("key")
            try:
                await committing
            except Unavailable:
                assert found != f"kept {number}"
            else:
                assert found == f"kept {number}"
            assert await backend.store.begin(NOW).get("key") == found


async def test_closing_the_store_writes_waiting_transactions_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        waiting = [
            asyncio.ensure_future(backend.journal.commit([record(f"{n}")], backend.store.begin(NOW))) for n in range(50)
        ]
        await asyncio.sleep(0)
    assert len(await asyncio.gather(*waiting)) == 50
    with pytest.raises(Unavailable):
        await backend.journal.commit([record("late")], backend.store.begin(NOW))
    async with opened(tmp_path) as backend:
        assert len(await ids(backend)) == 50


async def test_records_too_large_to_be_read_together_are_read_one_at_a_time(tmp_path: Path) -> None:
    bodies = [chr(97 + n) * 60_000 for n in range(5)]
    async with opened(tmp_path) as backend:
        await backend.journal.commit([record(body) for body in bodies], backend.store.begin(NOW))
    connection = sqlite3.connect(tmp_path / "ingestd.db")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    assert [found.body.decode() for found in read_records(connection, 0, 10)] == bodies
    connection.close()
