"""Work on a connection's thread, the callbacks with its results, and temporary files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.plugins.stores.sqlite.connection import Connection, connect

SCATTERED = """
import asyncio
import sys
from pathlib import Path
from tests.support.backends import sqlite_backend

async def write(folder):
    async with sqlite_backend(folder) as backend:
        for value, each in (("first", 1), ("second", 160)):
            state = backend.store.begin(0)
            for number in range(0, 20_000, each):
                await state.put(f"link:{number:032x}", value)
            await backend.store.commit(state)

asyncio.run(write(Path(sys.argv[1])))
"""
"""Writes 20,000 entries, and then 125 of them in one commit, each on a different page."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Connection]:
    path = folder / "events.db"
    path.touch()
    connection = await connect(path, writing=True, busy_timeout=1)
    try:
        yield connection
    finally:
        await connection.close()


class Told:
    """A callback that keeps its arguments and the threads of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, threading.Thread]] = []
        self._called = asyncio.Event()

    def __call__(self, result: Any) -> None:
        self.calls.append((result, threading.current_thread()))
        self._called.set()

    async def wait(self) -> Any:
        async with asyncio.timeout(10):
            await self._called.wait()
        ((result, thread),) = self.calls
        assert thread is threading.current_thread()
        return result


def double(connection: sqlite3.Connection, number: int, *, more: int) -> tuple[int, threading.Thread]:
    (doubled,) = connection.execute("SELECT 2 * ? + ?", (number, more)).fetchone()
    return doubled, threading.current_thread()


async def test_work_runs_on_the_connection_s_thread_and_its_callback_on_the_loop_s(tmp_path: Path) -> None:
    async with opened(tmp_path) as connection:
        told = Told()
        connection.submit_then(told, double, 4, more=1)
        doubled, thread = await told.wait()
    assert doubled == 9
    assert thread is not threading.current_thread()


async def test_the_callback_gets_an_error_and_the_thread_continues(tmp_path: Path) -> None:
    async with opened(tmp_path) as connection:
        failed, told = Told(), Told()
        connection.submit_then(failed, lambda each: each.execute("SELECT nothing"))
        connection.submit_then(told, lambda _: "next")
        assert isinstance(await failed.wait(), sqlite3.OperationalError)
        assert await told.wait() == "next"


async def test_a_closed_connection_takes_no_work(tmp_path: Path) -> None:
    async with opened(tmp_path) as connection:
        pass
    told = Told()
    with pytest.raises(ValueError, match="no active connection"):
        connection.submit_then(told, double, 4, more=1)
    assert told.calls == []


def test_commits_write_no_temporary_file(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    untouched = temporary.stat().st_mtime_ns
    command = [sys.executable, "-c", SCATTERED, str(tmp_path)]
    environment = {**os.environ, "SQLITE_TMPDIR": str(temporary)}
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[4], check=True, timeout=60)
    assert temporary.stat().st_mtime_ns == untouched, "SQLite made a temporary file"
