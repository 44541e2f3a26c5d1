"""The SQLite back end: one file as journal and state store, its owner, and its background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ingestd.api.backend import Backend, DaemonProcess
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import CommandError, Unavailable
from ingestd.support.periodic import every

from . import health
from .backup import back_up, restore
from .checkpoints import Checkpoints
from .commits import Commits
from .connection import check_version, open_error
from .contents import SqliteContents
from .control import apply_requests
from .database import Database
from .files import Lock, acquire, create, daemon_process
from .identity import take_identity
from .journal import SqliteJournal
from .shrinking import Shrinker
from .store import SqliteStore
from .sweep import Sweeper
from .upgrade import upgrade
from .writeback import WriteBack

__all__ = ["CACHE", "CACHE_SIZE", "SqliteBackend"]

CACHE, CACHE_SIZE = 200_000, 32 << 20
"""The entries of state that stay in memory, and the default for their bytes."""

_log = logging.getLogger("ingestd.sqlite")

_BUSY_SECONDS = 0.02  # between two looks for requests of commands after one has come
_LOOKS = 15  # looks after a request until the command counts as done
_PATIENCE = 5.0  # seconds for which a command waits for a daemon that is just creating the file


class SqliteBackend(Backend):
    """A daemon (`serving`) always owns the file. A command owns it while no daemon does. Otherwise it is a guest."""

    store: SqliteStore
    journal: SqliteJournal
    contents: SqliteContents

    def __init__(
        self, path: Path, *, cache: int = CACHE, cache_size: int = CACHE_SIZE, busy_timeout: float = 1.0
    ) -> None:
        self.path = path
        self.database = Database(path, cache=cache, cache_size=cache_size, busy_timeout=busy_timeout)
        self.store = SqliteStore(self.database)
        self.journal = SqliteJournal(self.database)
        self.contents = SqliteContents(self.database)
        self.write_back: WriteBack | None = None
        """None for a guest."""
        self._lock: Lock | None = None
        self._checkpoints: Checkpoints | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, serving: bool) -> None:
        if not serving:
            take_identity(self.path)
        create(self.path)
        self._lock = await acquire(self.path, serving=serving)
        try:
            await self.database.connections.open(owner=self._lock is not None, serving=serving)
            if self._lock is not None:
                await self._own()
            else:
                await self._visit()
            await self.store.read_loss()
        except sqlite3.Error as error:
            await self.close()
            raise open_error(error, self.path) from error
        except BaseException:
            await self.close()
            raise

    async def _own(self) -> None:
        database = self.database
        commits = await database.own()
        self.write_back = WriteBack(database.renewals, commits)
        self._checkpoints = Checkpoints(database, commits)
        await apply_requests(database, commits)
        self._run("sqlite_control", lambda: _apply_all(database, commits))
        self._run("sqlite_probe", lambda: _probe(commits))
        self._run("sqlite_sweep", Sweeper(database, commits).step)
        self._run("sqlite_renewals", self.write_back.step)
        self._run("sqlite_clean", database.cleaner.step)
        self._run("sqlite_checkpoints", self._checkpoints.step)
        self._run("sqlite_presence", database.presence.step)
        self._run("sqlite_shrinking", Shrinker(database).step)

    async def _visit(self) -> None:
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while not self.database.is_guest:
            try:
                await self.database.connections.read.connection.submit(check_version, self.path, current=True)
                self.database.is_guest = self.store.may_conflict = True
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.database.close()
        self.database.is_guest = self.store.may_conflict = False
        self.write_back = None
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def problem(self) -> str | None:
        commits = self.database.commits  # read once: another thread calls this too, for metrics
        return commits.problem if commits is not None else None

    async def describe(self) -> Sequence[CheckResult]:
        return await health.describe(self.database)

    async def exists(self) -> bool:
        return self.path.exists()

    async def daemons(self) -> Sequence[DaemonProcess]:
        pid = daemon_process(self.path)
        return [] if pid is None else [DaemonProcess(pid, socket.gethostname())]

    async def back_up(self, file: Path) -> None:
        take_identity(self.path)
        await asyncio.to_thread(back_up, self.path, file)

    async def restore(self, file: Path) -> Path | None:
        async with self._alone():
            return await asyncio.to_thread(restore, file, self.path)

    async def upgrade(self, *, keep: bool) -> str | None:
        async with self._alone():
            try:
                return await asyncio.to_thread(upgrade, self.path, keep=keep)
            except sqlite3.Error as error:
                raise open_error(error, self.path) from error

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        take_identity(self.path)
        lock = await acquire(self.path, serving=False)
        if lock is None:
            raise CommandError(f"{self.path}: a daemon has the file; stop it first")
        try:
            yield
        finally:
            lock.release()

    def _run(self, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # The commits report that the file is unavailable.
        work = every(name, partial(self._try, name, step), may_fail=Unavailable)
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _try(self, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await step()
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one failed step must not end the daemon
            _log.exception("%s: failed; it is tried again", name)
            if self.database.commits is not None:
                self.database.commits.report(f"internal error in {name}: {error!r}")


async def _apply_all(database: Database, commits: Commits) -> None:
    """Apply requests until there are no more. A command with many, such as an import, sends the next one soon."""
    looks = 1
    while looks:
        looks = _LOOKS if await apply_requests(database, commits) else looks - 1
        if looks:
            await asyncio.sleep(_BUSY_SECONDS)


async def _probe(commits: Commits) -> None:
    """Try a commit while commits fail, so that recovery is noticed even without new events."""
    if commits.problem is not None:
        await commits.commit(also=health.fill)
