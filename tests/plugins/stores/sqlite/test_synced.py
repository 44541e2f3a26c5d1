"""A power failure loses no answered event. It may only undo the last tenth of a second of deferrable steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.journal import Append, Cursor, IdempotencyKey
from ingestd.plugins.stores.sqlite import commits
from ingestd.plugins.stores.sqlite.batch import write_batch
from ingestd.plugins.stores.sqlite.connection import transaction
from ingestd.plugins.stores.sqlite.pending import Pending
from ingestd.testing.backends import append_each
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.journals import append

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
FULL, NORMAL = 2, 1

Written = list[tuple[bool, list[Pending]]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """All commits, each with `synced` and its transactions."""
    found: Written = []

    def write(
        connection: sqlite3.Connection, units: list[Pending], last: int | None, log_end: int, *, synced: bool
    ) -> Any:
        found.append((synced, [*units]))
        return write_batch(connection, units, last, log_end, synced=synced)

    monkeypatch.setattr(commits, "write_batch", write)
    return found


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "some.db", isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("CREATE TABLE thing (number INTEGER PRIMARY KEY)")
        yield opened


def level(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


def test_a_transaction_is_synced_unless_it_asks_for_the_contrary(connection: sqlite3.Connection) -> None:
    for synced, expected in ((True, FULL), (False, NORMAL), (True, FULL)):
        with transaction(connection, synced=synced):
            connection.execute("INSERT INTO thing DEFAULT VALUES")
            assert level(connection) == expected
        assert level(connection) == FULL


def test_after_a_failed_transaction_the_next_one_is_synced(connection: sqlite3.Connection) -> None:
    with suppress(LookupError), transaction(connection, synced=False):
        raise LookupError
    assert level(connection) == FULL
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN")  # as if the previous transaction could not end
    with transaction(connection):
        assert level(connection) == FULL


async def test_every_commit_except_deferrable_steps_alone_is_synced(tmp_path: Path, written: Written) -> None:
    async with sqlite_backend(tmp_path) as backend:
        journal, store = backend.journal, backend.store
        await append(backend, make_records(5))
        cursor = await journal.acquire_cursor("sink:one", "beginning")
        deferrable = cursor._replace(deferrable=True)
        written.clear()
        await append(backend, make_records(1))
        await journal.commit([], store.begin(NOW, step=True), cursor._replace(position=1))
        await journal.commit(make_records(1), store.begin(NOW, step=True), deferrable._replace(position=2))
        claim = IdempotencyKey("message:shop:a", "1", 1000)
        assert await append_each(journal, [Append(store.begin(NOW, event=True), None, claim)]) == [None]
        state = store.begin(NOW)
        await state.put("session:shop:a", "1")
        await store.commit(state)
        await journal.trim(2, 10)
        assert len(written) == 6
        assert all(synced for synced, _ in written)


async def test_deferrable_steps_are_synced_now_and_then(tmp_path: Path, written: Written) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(200))
        cursor = await backend.journal.acquire_cursor("sink:one", "beginning")
        written.clear()
        for position in range(1, 201):
            step = backend.store.begin(NOW, step=True)
            await backend.journal.commit([], step, cursor._replace(position=position, deferrable=True))
        synced = [each for each, _ in written]
        assert not all(synced)
        assert [unit.cursor.position for _, units in written for unit in units if unit.cursor] == [*range(1, 201)]
    async with sqlite_backend(tmp_path) as backend:
        [found] = await backend.journal.cursors()
        assert found == Cursor("sink:one", 200)
