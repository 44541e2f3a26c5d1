"""One SQLite file as journal and state store: opening, owning, and what goes on beside the commits."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ingestd import times
from ingestd.errors import ConfigError, Unavailable
from ingestd.events import Record
from ingestd.journal import Cursor
from ingestd.store import Backend, State, Store

from .commits import Commits, Unit
from .connection import Connection, connect, migrate
from .control import GuestState, apply_controls, submit
from .entries import Entries, Row
from .journal import SqliteJournal, last_position
from .state import SqliteState

__all__ = ["SqliteBackend"]

_log = logging.getLogger("ingestd.sqlite")
_T = TypeVar("_T")

_CONTROL_SECONDS = 0.25
_PROBE_SECONDS = 0.5
_SWEEP_SECONDS = 1.0
_SWEEP_ROWS = 500


class SqliteBackend(Backend):
    """`serving` makes it the owner; a command is the owner only while no daemon is, and else a guest."""

    def __init__(self, path: Path, *, cache: int, busy_timeout: float) -> None:
        self.path = path
        self.entries = Entries(cache, self._load)
        self.store = SqliteStore(self)
        self.journal = SqliteJournal(self)
        self.commits: Commits | None = None
        """None for a guest."""
        self._busy_timeout = busy_timeout
        self._lock: int | None = None
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, serving: bool) -> None:
        if not serving:
            _become_owner_of(self.path)
        self._make_private_files()
        owner = self._take_lock(serving=serving)
        try:
            self._writer = await connect(self.path, busy_timeout=self._busy_timeout, read_only=False)
            if owner:
                await self._writer.submit(migrate)
            self._reader = await connect(self.path, busy_timeout=self._busy_timeout, read_only=True)
            if owner:
                self.commits = Commits(self._writer, self.entries, await self.read(last_position))
                await self.change(lambda c: c.execute("DELETE FROM control WHERE answer IS NOT NULL").rowcount)
                await apply_controls(self)
        except sqlite3.Error as error:
            await self.close()
            raise Unavailable(f"{self.path}: cannot be opened: {error}") from error
        except BaseException:
            await self.close()
            raise
        if owner:
            self._run("control", _CONTROL_SECONDS, lambda: apply_controls(self))
            self._run("probe", _PROBE_SECONDS, self._probe)
            self._run("sweep", _SWEEP_SECONDS, _Sweeper(self).step)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.commits is not None:
            await self.commits.finish()
        for connection in (self._reader, self._writer):  # the last one to close folds the log into the file
            if connection is not None:
                await connection.close()
        self._reader = self._writer = self.commits = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def problem(self) -> str | None:
        return self.commits.problem if self.commits is not None else None

    async def describe(self) -> Mapping[str, str]:
        def select(connection: sqlite3.Connection) -> dict[str, str]:
            count, last = connection.execute("SELECT count(*), coalesce(max(position), 0) FROM journal").fetchone()
            facts = {
                "store": f"{self.path} ({self.path.stat().st_size} bytes, SQLite {sqlite3.sqlite_version})",
                "journal": f"{count} records, the last at position {last}",
            }
            for name, position in connection.execute("SELECT name, position FROM cursors ORDER BY name"):
                facts[f"cursor {name}"] = f"at position {position}"
            return facts

        return await self.read(select)

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a short read. Raises `Unavailable`."""
        return await self._on(self._reader, work)

    async def change(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run one statement that writes beside the commits. Raises `Unavailable`."""
        return await self._on(self._writer, work)

    @staticmethod
    async def _on(connection: Connection | None, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if connection is None:
            raise Unavailable("the store is not open")
        try:
            return await connection.submit(work)
        except (sqlite3.Error, ValueError) as error:  # ValueError: closed meanwhile
            raise Unavailable(f"The store cannot be read or written at the moment: {error}.") from error

    async def write(
        self,
        state: SqliteState,
        records: Sequence[Record] = (),
        cursor: Cursor | None = None,
        answer: tuple[str, int] | None = None,
    ) -> int:
        """Commit a unit of work; a guest asks the owner to."""
        if isinstance(state, GuestState):
            if state.written or records:
                await submit(self, state, records)
            return 0
        if self.commits is None:
            raise Unavailable("the store is not open")
        return await self.commits.commit(Unit(records, state.touched, cursor, answer), dead=state.dead)

    def fresh_entries(self) -> Entries:
        """Entries that are loaded from the file as it is now."""
        return Entries(1 << 20, self._load)

    async def _load(self, keys: str) -> Sequence[Row]:
        def select(connection: sqlite3.Connection) -> list[Row]:
            return connection.execute(
                "SELECT key, value, fields, expires FROM state WHERE key IN (SELECT value FROM json_each(?))", (keys,)
            ).fetchall()

        return await self.read(select)

    async def _probe(self) -> None:
        """While commits fail, try one: recovery is noticed even if nobody sends events any more."""
        if self.commits is not None and self.commits.problem is not None:
            try:
                # As large as a few events, so that a disk with room for nothing else still counts as full.
                await self.change(
                    lambda c: (
                        c.execute(
                            "INSERT INTO probe VALUES (1, ?, zeroblob(65536)) ON CONFLICT (id) DO UPDATE"
                            " SET at = excluded.at, filler = randomblob(65536)",
                            (times.now(),),
                        ).rowcount
                    )
                )
            except Unavailable:
                return
            self.commits.problem = None
            _log.info("events can be stored again")

    def _run(self, name: str, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await step()
                except Unavailable as error:
                    _log.debug("%s: %s", name, error)  # the commits tell of it, and the next turn tries again
                except Exception:  # noqa: BLE001 - a fault of one turn must not end the work of the daemon's life
                    _log.exception("%s: failed; it is tried again", name)

        self._tasks.append(asyncio.create_task(loop(), name=f"sqlite: {name}"))

    def _make_private_files(self) -> None:
        """The file holds secrets: only its owner may read it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ConfigError(f"store.url: {self.path} cannot be opened: {error.strerror}") from error

    def _take_lock(self, *, serving: bool) -> bool:
        """Become the owner of the file, or know that another is. The lock goes with the process, however it ends."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            if serving:
                raise ConfigError(
                    f"store.url: {self.path} belongs to another ingestd (process {holder}); stop that one, or give"
                    " this one a file of its own"
                ) from None
            return False
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock
        return True


class SqliteStore(Store):
    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    def begin(self, now: int) -> State:
        if self._backend.commits is None:
            # A command's unit sees what is on disk when it begins, not what an earlier one cached.
            return GuestState(self._backend.fresh_entries(), now)
        return SqliteState(self._backend.entries, now)

    async def commit(self, state: State) -> None:
        assert isinstance(state, SqliteState)
        await self._backend.write(state)

    def discard(self, state: State) -> None:
        assert isinstance(state, SqliteState)
        for key in state.written:
            entry = state.touched[key]
            if entry.dirty:
                self._backend.entries.kill(key, entry)


class _Sweeper:
    """Walks the table of states, a few rows at a time, and removes what has expired."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._after = ""

    async def step(self) -> None:
        after, now = self._after, times.now()

        def select(connection: sqlite3.Connection) -> list[tuple[str, int | None]]:
            return connection.execute(
                "SELECT key, expires FROM state WHERE key > ? ORDER BY key LIMIT ?", (after, _SWEEP_ROWS)
            ).fetchall()

        rows = await self._backend.read(select)
        self._after = rows[-1][0] if len(rows) == _SWEEP_ROWS else ""
        expired = [key for key, expires in rows if expires is not None and expires < now]
        if expired:
            # What has been renewed meanwhile is not expired any more, so the statement looks again.
            await self._backend.change(
                lambda c: (
                    c.executemany(
                        "DELETE FROM state WHERE key = ? AND expires < ?", [(key, now) for key in expired]
                    ).rowcount
                )
            )


def _become_owner_of(path: Path) -> None:
    """A command run as root must leave no file behind that the daemon cannot open."""
    if os.geteuid() != 0 or not path.exists():
        return
    owner = path.stat()
    if owner.st_uid != 0:
        os.setgroups([])
        os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
        os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
