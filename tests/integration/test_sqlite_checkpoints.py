"""The write-ahead log is moved into the file while events go on being stored."""

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

NOW = 1_795_233_906_000
MANY = 1200  # units of work
COUNT = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM journal').fetchone())"
BODY = b'{"long":"%s"}' % (b"x" * 2000)


async def store_many(backend: Backend) -> None:
    await asyncio.gather(*(append(backend, [Record("event", NOW, BODY)]) for _ in range(MANY)))


def opened_in(folder: Path) -> list[str]:
    """What this process has open of a folder."""
    names = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [name for name in names if name.startswith(str(folder))]


async def test_the_log_is_begun_anew_though_events_come_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_LONG", 1000)
    log = tmp_path / "ingestd.db-wal"
    async with sqlite_backend(tmp_path) as backend:

        async def go_on_storing() -> None:
            for _ in range(500):
                await append(backend, [Record("event", NOW, BODY)])

        await asyncio.gather(*(go_on_storing() for _ in range(20)))
        assert log.stat().st_size < 10_000 * len(BODY) / 2


async def test_events_are_stored_while_the_log_is_being_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_log_that_was_moved_is_bound_to_no_past(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ingestd.db", timeout=0)) as another:

        def is_emptied() -> bool:
            busy, _, _ = another.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy

        async with sqlite_backend(tmp_path) as backend:
            for _ in range(3):
                await store_many(backend)
                await until(is_emptied)


async def test_what_others_do_with_the_file_does_not_take_the_log_away(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await store_many(backend)
        command = [sys.executable, "-c", COUNT, str(tmp_path / "ingestd.db")]
        assert await asyncio.to_thread(subprocess.check_output, command) == b"(%d,)\n" % MANY
        assert (tmp_path / "ingestd.db-wal").exists()  # the last one to close removes it: the other process was not
        await store_many(backend)
        assert len(await backend.journal.read(MANY, MANY + 1)) == MANY


async def test_nothing_of_the_file_is_open_when_it_is_closed(tmp_path: Path) -> None:
    for _ in range(2):
        async with sqlite_backend(tmp_path) as backend:
            await store_many(backend)
            assert opened_in(tmp_path)
        assert not opened_in(tmp_path)
