"""The write-ahead log is moved into the file while events go on being stored."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from ingestd.backend import Backend
from ingestd.events import Record
from ingestd.plugins.stores.sqlite import checkpoints
from tests.support.backends import sqlite_backend
from tests.support.journals import append, until

NOW = 1_795_233_906_000
MANY = 1200  # units of work
BODY = b'{"long":"%s"}' % (b"x" * 2000)


async def store_many(backend: Backend) -> None:
    await asyncio.gather(*(append(backend, [Record("event", NOW, BODY)]) for _ in range(MANY)))


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
