"""Every transaction sees the results of earlier operations, whatever the cache keeps or evicts."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.store import Field, State
from ingestd.plugins.stores.recent_records import READ_BYTES
from ingestd.plugins.stores.sqlite import SqliteBackend
from tests.support.journals import until
from tests.support.state_model import Model

DAY = 86_400_000


keys = st.sampled_from(["a", "b", "c", "d", "\x00", "e\x00f"])
values = st.sampled_from(["x", "y", ""])
lives = st.none() | st.integers(0, 5)
operations = st.one_of(
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("put"), keys, values, lives),
    st.tuples(st.just("swap"), keys, st.none() | values, values, lives),
    st.tuples(st.just("renew"), keys, values, st.integers(0, 5)),
    st.tuples(st.just("delete"), keys),
    st.tuples(
        st.just("merge"),
        keys,
        st.dictionaries(st.sampled_from(["m", "n", ""]), st.builds(Field, st.integers(0, 3), values), max_size=2),
        st.fixed_dictionaries({"keep": st.none() | st.integers(0, 2), "keep_size": st.none() | st.integers(0, 4)}),
    ),
    st.tuples(st.just("fields"), keys),
)


async def reopened(backend: SqliteBackend) -> SqliteBackend:
    await backend.close()
    again = SqliteBackend(backend.path, cache=backend.database._cache, busy_timeout=1.0)
    await again.open(serving=True)
    return again


async def compact(backend: SqliteBackend) -> None:
    assert backend.write_back is not None
    await backend.write_back.compact()


async def execute(state: State, model: Model, operation: tuple[Any, ...]) -> None:
    name, *arguments = operation
    bounds = arguments.pop() if name == "merge" else {}
    expected = getattr(model, name)(state.now, *arguments, **bounds)
    assert await getattr(state, name)(*arguments, **bounds) == expected, operation


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 12),
            operations | st.sampled_from(["commit", "reopen", "compact", "remake the filter"]),
        ),
        max_size=40,
    ),
)
def test_simultaneous_transactions_see_each_other_s_operations(
    cache: int, steps: Sequence[tuple[int, int, Any]]
) -> None:
    async def run(folder: Path) -> None:
        model = Model()
        backend = SqliteBackend(folder / "ingestd.db", cache=cache, busy_timeout=1.0)
        await backend.open(serving=True)
        units: dict[int, State] = {}
        try:
            for number, now, action in steps:
                state = units.setdefault(number, backend.store.begin(now))
                if action == "reopen":
                    await asyncio.gather(*(backend.store.commit(each) for each in units.values()))
                    units = {}
                    backend = await reopened(backend)
                elif action == "compact":
                    await compact(backend)
                elif action == "remake the filter":
                    await backend.database.presence.remake()
                elif action == "commit":
                    await backend.store.commit(units.pop(number))
                else:
                    await execute(state, model, action)
        finally:
            await backend.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.lists(operations, max_size=8), st.integers(0, 12), st.sampled_from(["commit", "discard"]), st.booleans()
        ),
        max_size=8,
    ),
)
def test_a_discarded_transaction_leaves_nothing(
    cache: int, units: Sequence[tuple[list[tuple[Any, ...]], int, str, bool]]
) -> None:
    async def run(folder: Path) -> None:
        model = Model()
        backend = SqliteBackend(folder / "ingestd.db", cache=cache, busy_timeout=1.0)
        await backend.open(serving=True)
        try:
            for work, now, end, reopen in units:
                before = dict(model.kept)
                state = backend.store.begin(now)
                for operation in work:
                    await execute(state, model, operation)
                if end == "commit":
                    await backend.store.commit(state)
                else:
                    backend.store.discard(state)
                    model.kept = before
                if reopen:
                    backend = await reopened(backend)
        finally:
            await backend.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def test_expired_entries_leave_the_file_and_living_ones_stay(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=10, busy_timeout=1.0)
    await backend.open(serving=True)
    state = backend.store.begin(1000)
    for number in range(2500):
        await state.put(f"short {number}", "x", 10)
    await state.put("long", "x", 10 * DAY)
    await state.put("for ever", "x")
    await state.put("renewed", "x", 10)
    await state.merge("fields", {"name": Field(1, "x")})
    await backend.store.commit(state)
    late = backend.store.begin(1000 + 3 * DAY)
    await late.put("renewed", "x", 10)
    await backend.store.commit(late)
    other = sqlite3.connect(tmp_path / "ingestd.db")

    def left() -> set[str]:
        return {key for (key,) in other.execute("SELECT key FROM state")}

    await until(lambda: len(left()) <= 4)
    assert left() == {"long", "for ever", "renewed", "fields"}
    other.close()
    assert await backend.store.begin(1000 + 3 * DAY).get("renewed") == "x"
    await backend.close()


async def test_a_late_consumer_finds_entries_that_were_live_at_its_time(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=1, busy_timeout=1.0)
    await backend.open(serving=True)
    state = backend.store.begin(1000)
    await state.put("key", "x", 10)
    await state.put("sign", "x", 10 - DAY)  # long expired; its removal shows that the sweep has run
    await backend.store.commit(state)
    backend.store.begin(1000 + DAY // 2)
    other = sqlite3.connect(tmp_path / "ingestd.db")
    await until(lambda: other.execute("SELECT count(*) FROM state WHERE key = 'sign'").fetchone() == (0,))
    other.close()
    await backend.store.begin(1000).get("evicts the key")
    assert await backend.store.begin(1010).get("key") == "x"
    await backend.close()


async def test_large_entries_evict_others_and_nothing_is_lost(tmp_path: Path) -> None:
    size = 200_000
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=1000, cache_size=size, busy_timeout=1.0)
    await backend.open(serving=True)
    entries = backend.database.entries
    values = {f"kind:{number}": f"{number}" * 10_000 for number in range(60)}
    for key, value in values.items():
        state = backend.store.begin(0)
        await state.put(key, value)
        await state.merge(f"profile:{key}", {"name": Field(0, value)})
        await state.push(f"set:{key}", value, 0, keep=5)
        await backend.store.commit(state)
        await until(lambda: entries.weight <= size)
    for key, value in values.items():
        state = backend.store.begin(0)
        assert await state.get(key) == value
        assert await state.fields(f"profile:{key}") == {"name": Field(0, value)}
        assert await state.window(f"set:{key}") == [(value, 0)]
        assert entries.weight <= size + 3 * 30_000  # plus the entries loaded last
    assert 0 < entries.count < 30
    assert entries.weight == sum(entry.weigh() for entry in entries._known.values())
    await backend.close()


async def test_reads_stop_at_a_number_of_bytes(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=1000, busy_timeout=1.0)
    await backend.open(serving=True)
    sizes = [10] * 100 + [1_000_000] * 8 + [10, 1_000_000] * 5
    for count, size in enumerate(sizes):
        await backend.journal.commit([Record("event", count, b"x" * size)], backend.store.begin(0))
    commits = backend.database.commits
    assert commits is not None
    commits.tail.forget()
    read: list[int] = []
    while len(read) < len(sizes):
        records = await backend.journal.read(len(read), 1000)
        assert [record.position for record in records] == [*range(len(read) + 1, len(read) + len(records) + 1)]
        assert sum(len(record.body) for record in records[:-1]) < READ_BYTES
        read += [len(record.body) for record in records]
    assert read == sizes
    await backend.close()
