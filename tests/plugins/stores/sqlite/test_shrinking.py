"""The SQLite file gives space back that it has not needed for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.support.periodic import TIMING
from ingestd.testing.records import make_records
from tests.support.journals import append

SIZE = 64_000_000


@pytest.mark.parametrize("former", [False, True])
async def test_a_file_shrinks_after_a_removal_unless_an_earlier_version_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, former: bool
) -> None:
    monkeypatch.setattr(TIMING, "sqlite_shrinking", 0.05)
    path = tmp_path / "ingestd.db"
    backend = SqliteBackend(path, cache=100, busy_timeout=1.0)
    await backend.open(serving=True)
    if former:
        await backend.close()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript("PRAGMA auto_vacuum = NONE; VACUUM;")
        await backend.open(serving=True)
    try:
        body = "x" * 1_000_000
        for _ in range(SIZE // 4_000_000):
            await append(backend, make_records(4, context={"more": body}))
        assert path.stat().st_size + path.with_name("ingestd.db-wal").stat().st_size > SIZE / 2
        while await backend.journal.trim(10**9, 500):
            pass
        log = path.with_name("ingestd.db-wal")
        for number in range(100):
            await asyncio.sleep(0.1)
            if (path.stat().st_size < SIZE / 4 or (former and number > 20)) and log.stat().st_size < 16 << 20:
                break
        assert (path.stat().st_size < SIZE / 4) is not former
        assert log.stat().st_size < 16 << 20, "the log is emptied"
        await append(backend, make_records(2))
        assert [record.position for record in await backend.journal.read(0, 10)] == [65, 66]
        size = await backend.store.size()
        assert size.used < 1 << 20
    finally:
        await backend.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
