"""Group commit: simultaneous events share a commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ingestd.api.backend import Backend
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.journals import append, read_all

CLIENTS, EVENTS = 8, 40


async def send(backend: Backend) -> None:
    for record in make_records(EVENTS):
        await append(backend, [record])


async def test_clients_that_wait_for_their_answers_share_commits(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        assert isinstance(backend, SqliteBackend)
        begun = [asyncio.create_task(send(backend)) for _ in range(CLIENTS // 2)]
        for _ in range(5):
            await asyncio.sleep(0)
        # The first commit is in progress, so these are not in it.
        begun += [asyncio.create_task(send(backend)) for _ in range(CLIENTS // 2)]
        await asyncio.gather(*begun)
        assert len(await read_all(backend.journal)) == CLIENTS * EVENTS
        assert backend.database.statistics.stored < 1.5 * EVENTS
