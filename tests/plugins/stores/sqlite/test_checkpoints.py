"""Checkpoints move the write-ahead log into the file while events are stored."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.plugins.stores.sqlite import checkpoints
from tests.support.backends import sqlite_backend
from tests.support.journals import append, until

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
MANY = 1200  # transactions
COUNT = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM journal').fetchone())"
BODY = b'{"long":"%s"}' % (b"x" * 2000)


async def store_many(backend: Backend) -> None:
    await asyncio.gather(*(append(backend, [Record("event", NOW, BODY)]) for _ in range(MANY)))


def opened_in(folder: Path) -> list[str]:
    """The files in the folder that this process has open."""
    names = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [name for name in names if name.startswith(str(folder))]


async def test_the_log_restarts_despite_events_without_a_pause(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_LONG", 1000)
    log = disk / "ingestd.db-wal"
    async with sqlite_backend(disk) as backend:

        async def keep_storing() -> None:
            for _ in range(500):
                await append(backend, [Record("event", NOW, BODY)])

        await asyncio.gather(*(keep_storing() for _ in range(20)))
        assert log.stat().st_size < 10_000 * len(BODY) / 2


async def test_events_are_stored_during_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    move = checkpoints._checkpoint

    def move_when_told(connection: sqlite3.Connection) -> int:
        begun.set()
        assert go_on.wait(60)
        return move(connection)

    monkeypatch.setattr(checkpoints, "_checkpoint", move_when_told)
    async with sqlite_backend(tmp_path) as backend:
        try:
            await store_many(backend)
            await until(begun.is_set)
            await append(backend, [Record("event", NOW, BODY)])
            assert len(await backend.journal.read(MANY, 10)) == 1
        finally:
            go_on.set()


async def test_no_old_snapshot_keeps_the_log_after_a_checkpoint(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ingestd.db", timeout=0)) as another:

        def is_emptied() -> bool:
            busy, _, _ = another.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy

        async with sqlite_backend(tmp_path) as backend:
            for _ in range(3):
                await store_many(backend)
                await until(is_emptied)


async def test_another_process_that_reads_the_file_does_not_remove_the_log(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await store_many(backend)
        command = [sys.executable, "-c", COUNT, str(tmp_path / "ingestd.db")]
        assert await asyncio.to_thread(subprocess.check_output, command) == b"(%d,)\n" % MANY
        assert (tmp_path / "ingestd.db-wal").exists()  # only the last connection to close removes the log
        await store_many(backend)
        assert len(await backend.journal.read(MANY, MANY + 1)) == MANY


async def test_closing_the_back_end_closes_all_its_files(tmp_path: Path) -> None:
    for _ in range(2):
        async with sqlite_backend(tmp_path) as backend:
            await store_many(backend)
            assert opened_in(tmp_path)
        assert not opened_in(tmp_path)
