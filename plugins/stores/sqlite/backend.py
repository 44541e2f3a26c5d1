"""One SQLite file as journal and state store: opening, owning, and what goes on beside the commits."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ingestd import times
from ingestd.backend import Backend
from ingestd.errors import CommandError, Unavailable
from ingestd.events import Record
from ingestd.findings import Finding
from ingestd.journal import Cursor
from ingestd.store import State, Store

from ..entries import Entries, Loaded, Row
from ..entries_state import EntriesState
from . import health
from .batch import last_member, last_position, read_rows, read_values
from .checkpoints import Checkpoints
from .commits import Commits
from .connection import Connection, check_version, connect, migrate, open_error, snapshot
from .control import apply_requests
from .files import Lock, acquire, create
from .guest import GuestState, submit
from .identity import take_identity
from .journal import SqliteJournal
from .presence import Presence
from .removal import Cleaner, Replacement, replace_bodies
from .renewals import Renewal, Renewals, read_log, renewed
from .statistics import CommitStatistics
from .sweep import Sweeper

__all__ = ["SqliteBackend"]

_log = logging.getLogger("ingestd.sqlite")
_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONTROL_SECONDS = 0.25
_PROBE_SECONDS = 0.5
_SCANNED = 1000  # entries of a step
_SWEEP_SECONDS = 0.1
_RENEWALS_SECONDS = 1.0
_CLEAN_SECONDS = 2.0
_CHECKPOINT_SECONDS = 0.05
_PRESENCE_SECONDS = 1.0
_PATIENCE = 5.0  # seconds a command waits for a daemon that is just making the file


class SqliteBackend(Backend):
    """`serving` makes it the owner; a command is the owner only while no daemon is, and else a guest."""

    store: SqliteStore
    journal: SqliteJournal

    def __init__(self, path: Path, *, cache: int, busy_timeout: float) -> None:
        self.path = path
        self.entries = Entries(cache, self._load)
        self.renewals = Renewals()
        self.presence = Presence(self)
        self.store = SqliteStore(self)
        self.journal = SqliteJournal(self)
        self.cleaner = Cleaner(self)
        self.commits: Commits | None = None
        """None for a guest."""
        self.statistics = CommitStatistics()
        self._busy_timeout = busy_timeout
        self._cache = cache
        self._lock: Lock | None = None
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._beside: Connection | None = None
        """For what a commit need not wait for."""
        self._bound: Connection | None = None
        """Whose snapshot bounds how far the log is moved."""
        self._checkpoints: Checkpoints | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, serving: bool) -> None:
        if not serving:
            take_identity(self.path)
        create(self.path)
        self._lock = await acquire(self.path, serving=serving)
        try:
            self._writer = await connect(self.path, writing=True, busy_timeout=self._busy_timeout)
            if self._lock is not None:
                await self._writer.submit(migrate, self.path)
            self._reader = await connect(self.path, writing=False, busy_timeout=self._busy_timeout)
            if self._lock is not None:
                await self._own(self._writer)
            else:
                await self._visit(self._reader)
        except sqlite3.Error as error:
            await self.close()
            raise open_error(error, self.path) from error
        except BaseException:
            await self.close()
            raise

    async def _own(self, writer: Connection) -> None:
        # What an earlier opening of this object has cached may not be so any more.
        self.presence = Presence(self)
        self.entries = Entries(self._cache, self._load, await writer.submit(last_member), self.presence.rules_out)
        self.renewals = Renewals(*await writer.submit(read_log))
        commits = self.commits = Commits(
            writer,
            self.entries,
            await writer.submit(last_position),
            self.statistics,
            renewals=self.renewals,
            presence=self.presence,
        )
        await apply_requests(self, commits)
        self._run("control", _CONTROL_SECONDS, lambda: apply_requests(self, commits))
        self._run("probe", _PROBE_SECONDS, lambda: _probe(commits))
        self._run("sweep", _SWEEP_SECONDS, Sweeper(self, commits).step)
        self._run("renewals", _RENEWALS_SECONDS, lambda: self.renewals.step(commits))
        self._run("clean", _CLEAN_SECONDS, self.cleaner.step)
        self._beside = await connect(self.path, writing=False, busy_timeout=self._busy_timeout)
        self._bound = await connect(self.path, writing=False, busy_timeout=self._busy_timeout)
        self._checkpoints = Checkpoints(self, commits)
        self._run("checkpoints", _CHECKPOINT_SECONDS, self._checkpoints.step)
        self._run("presence", _PRESENCE_SECONDS, self.presence.step)

    async def _visit(self, reader: Connection) -> None:
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            try:
                await reader.submit(check_version, self.path, current=True)
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.commits is not None:
            await self.commits.finish()
        # The last one to close folds the log into the file.
        for connection in (self._bound, self._beside, self._reader, self._writer):
            if connection is not None:
                await connection.close()
        self._bound = self._beside = self._reader = self._writer = self.commits = None
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def problem(self) -> str | None:
        commits = self.commits  # once: this is also asked from another thread, when metrics are shown
        return commits.problem if commits is not None else None

    async def describe(self) -> Sequence[Finding]:
        return await health.describe(self)

    async def read(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run a short read. Raises `Unavailable`."""
        return await _on(self._reader, work, *args, **kw)

    async def change(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run what writes beside the commits: one statement. Raises `Unavailable`."""
        return await _on(self._writer, work, *args, **kw)

    async def aside(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run what takes long, and what neither commits nor reads wait for. Raises `Unavailable`."""
        return await _on(self._beside, work, *args, **kw)

    async def bound(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Begin or end what bounds how far the log is moved. Raises `Unavailable`."""
        return await _on(self._bound, work, *args, **kw)

    async def commit(self, state: EntriesState, records: Sequence[Record] = (), cursor: Cursor | None = None) -> int:
        """Commit a unit of work; a guest asks the owner to."""
        if self.commits is not None:
            return await self.commits.commit(state, records, cursor)
        if self._reader is None:
            raise Unavailable("The store is closed.")
        if cursor is not None:
            raise CommandError("only the daemon itself can consume the journal")
        if records or state.written:
            assert isinstance(state, GuestState)
            return await submit(self, state, records)
        return await self.read(last_position)

    async def replace(self, replacements: Sequence[Replacement]) -> int:
        """Replace bodies of records, or ask the owner to; returns how many there were to replace."""
        if self.commits is None:
            state = self.begin(times.now())
            assert isinstance(state, GuestState)
            return await submit(self, state, (), replacements) if replacements else 0
        self.commits.tail.forget()
        counts: list[int] = []
        await self.commits.commit(also=lambda connection, _: counts.append(replace_bodies(connection, replacements)))
        self.cleaner.due = True
        return counts[-1]

    def begin(self, now: int) -> EntriesState:
        if self.commits is not None:
            return EntriesState(self.entries, now)
        # A command's unit sees what is on disk when it begins, not what an earlier one cached.
        return GuestState(Entries(self._cache, self._load), now)

    def _load(self, keys: Sequence[str], loaded: Loaded) -> None:
        if self._reader is None:
            raise Unavailable("The store is closed.")
        # What they were renewed to is asked for first: it may be in the rows soon, and nowhere else.
        renewals = self.renewals.of(keys) if self.commits is not None else None

        def read(rows: list[Row] | BaseException) -> None:
            loaded(_unavailable(rows) if isinstance(rows, sqlite3.Error) else rows)

        try:
            self._reader.submit_then(read, _read_renewed, keys, renewals)
        except ValueError as error:  # closed meanwhile
            raise _unavailable(error) from error

    async def renewals_of(self, kind: str) -> Mapping[str, str]:
        """Key and value of all entries of a kind that the log of renewals has. Raises `Unavailable`."""
        return self.renewals.of_kind(kind) if self.commits is not None else await self.read(_read_kind, kind)

    def _run(self, name: str, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(name, seconds, step), name=f"sqlite: {name}"))

    async def _repeat(self, name: str, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await step()
            except Unavailable as error:
                _log.debug("%s: %s", name, error)  # the commits tell of it, and the next turn tries again
            except Exception as error:  # noqa: BLE001 - a fault of one turn must not end the work of the daemon's life
                _log.exception("%s: failed; it is tried again", name)
                if self.commits is not None:
                    self.commits.report(f"internal error in {name}: {error!r}")


class SqliteStore(Store):
    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self.clock = 0
        """The latest time of any unit."""

    def begin(self, now: int, *, step: bool = False) -> EntriesState:
        self.clock = max(self.clock, now)
        return self._backend.begin(now)

    async def commit(self, state: State) -> None:
        assert isinstance(state, EntriesState)
        await self._backend.commit(state)

    def discard(self, state: State) -> None:
        assert isinstance(state, EntriesState)
        state.undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        # Asked for first: it may be in the rows soon, and nowhere else.
        renewals = await self._backend.renewals_of(kind)
        after = f"{kind}:"
        while page := await self._backend.read(read_values, kind, after, _SCANNED):
            for entry in page:
                if entry[0] not in renewals:
                    yield entry
            after = page[-1][0]
        for entry in renewals.items():
            yield entry


async def _on(
    connection: Connection | None,
    work: Callable[Concatenate[sqlite3.Connection, _P], _T],
    *args: _P.args,
    **kw: _P.kwargs,
) -> _T:
    if connection is None:
        raise Unavailable("The store is closed.")
    try:
        return await connection.submit(work, *args, **kw)
    except (sqlite3.Error, ValueError) as error:  # ValueError: closed meanwhile
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"The store cannot be read or written at the moment: {error}.")


def _read_renewed(
    connection: sqlite3.Connection, keys: Sequence[str], renewals: Mapping[str, Renewal] | None
) -> list[Row]:
    """The rows of some keys with the lives they have; where these are not given, by what is in the file."""
    if renewals is not None:
        return renewed(read_rows(connection, keys), renewals)
    with snapshot(connection):
        return renewed(read_rows(connection, keys), Renewals(*read_log(connection)).of(keys))


def _read_kind(connection: sqlite3.Connection, kind: str) -> dict[str, str]:
    return Renewals(*read_log(connection)).of_kind(kind)


async def _probe(commits: Commits) -> None:
    """While commits fail, try one: recovery is noticed even if nobody sends events any more."""
    if commits.problem is not None:
        await commits.commit(also=health.fill)
