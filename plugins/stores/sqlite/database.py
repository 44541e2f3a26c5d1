"""A SQLite file's state in memory, and its transactions: an owner commits them, a guest sends them to the owner."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ingestd.api import times
from ingestd.api.errors import CommandError, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor

from ..cache import Entries, Loaded
from ..cached_state import CachedState
from ..entry import Row
from .batch import last_member, last_position, read_rows
from .bloom_filter import BloomFilter
from .commits import Commits, CommitStatistics
from .connection import snapshot
from .connections import SqliteConnections
from .guest import GuestState, submit
from .guest_commits import GuestCommits
from .removal import Cleaner, Replacement, replace_bodies
from .ttl_log import Renewal, TtlLog, read_log, renewed

__all__ = ["Database"]


class Database:
    """Shared by journal and store. `cache` bounds the state entries in memory, `cache_size` their bytes."""

    def __init__(self, path: Path, *, cache: int, cache_size: int, busy_timeout: float) -> None:
        self.path = path
        self.connections = SqliteConnections(path, busy_timeout)
        self.statistics = CommitStatistics()
        self.commits: Commits | None = None
        """None for a guest, and while the file is closed."""
        self.is_guest = False
        """Whether the file is open while another process owns it."""
        self.clock = 0
        """The latest time of any transaction, in milliseconds."""
        self._cache = cache
        self._cache_size = cache_size
        self.renewals = TtlLog()
        self.presence = BloomFilter(self.connections, self.renewals)
        self.entries = Entries(cache, self._load, size=cache_size)
        self.cleaner = Cleaner(self.connections, self.entries)
        self.guest_commits = GuestCommits(self.connections, self._new_entries)

    async def own(self) -> Commits:
        """Become the owner of the file, whose connections must be open. Raises `sqlite3.Error`."""
        writer = self.connections.change.connection
        # Entries cached by an earlier opening of this object may be outdated.
        self.renewals = await writer.submit(_read_log)
        self.presence = BloomFilter(self.connections, self.renewals)
        self.entries = Entries(
            self._cache,
            self._load,
            await writer.submit(last_member),
            self.presence.definitely_absent,
            size=self._cache_size,
        )
        self.cleaner = Cleaner(self.connections, self.entries)
        self.commits = Commits(
            writer,
            self.entries,
            await writer.submit(last_position),
            self.statistics,
            renewals=self.renewals,
            presence=self.presence,
        )
        return self.commits

    async def close(self) -> None:
        """Close the file once all gathered transactions are written."""
        if self.commits is not None:
            await self.commits.finish()
            with suppress(Unavailable):  # the file is on a disk that fails
                await self.cleaner.step()
        await self.connections.close()
        self.commits = None

    def visit(self, now: int) -> GuestState:
        """A command's transaction: it sees the file as it is now. Entries of earlier transactions may be outdated."""
        return GuestState(self._new_entries(), now)

    def _new_entries(self) -> Entries:
        return Entries(self._cache, self._load, size=self._cache_size)

    async def commit(self, state: CachedState, records: Sequence[Record] = (), cursor: Cursor | None = None) -> int:
        """Commit a transaction; a guest sends it to the owner. Returns the last position."""
        position = await self._commit(state, records, cursor)
        state.committed()
        return position

    async def _commit(self, state: CachedState, records: Sequence[Record], cursor: Cursor | None) -> int:
        if self.commits is not None:
            return await self.commits.commit(state, records, cursor)
        if not self.is_guest:
            raise Unavailable("The store is closed.")
        if cursor is not None:
            raise CommandError("only the daemon can consume the journal")
        if records or state.written:
            assert isinstance(state, GuestState)
            return await submit(self.connections, [state], records)
        return await self.connections.read(last_position)

    async def replace(self, replacements: Sequence[Replacement]) -> int:
        """Replace bodies of records; a guest sends this to the owner. Returns how many records were found."""
        if self.commits is None:
            if not replacements:
                return 0
            return await submit(self.connections, [self.visit(times.now())], (), replacements)
        self.commits.tail.forget()
        counts: list[int] = []
        await self.commits.commit(also=lambda connection, _: counts.append(replace_bodies(connection, replacements)))
        self.cleaner.records_blanked()
        return counts[-1]

    async def log(self) -> TtlLog:
        """The TTL log. Raises `Unavailable`."""
        return self.renewals if self.commits is not None else await self.connections.read(_read_log)

    async def read_rows(self, keys: Sequence[str]) -> list[Row]:
        """The durable rows of some keys. Raises `Unavailable`."""
        renewals = self.renewals.of(keys) if self.commits is not None else None
        return await self.connections.read(_read_renewed, keys, renewals)

    def _load(self, keys: Sequence[str], loaded: Loaded) -> None:
        # Read the TTL log first: a write-back may move its entries to the rows during the load.
        renewals = self.renewals.of(keys) if self.commits is not None else None
        self.connections.read_then(loaded, _read_renewed, keys, renewals)


def _read_renewed(
    connection: sqlite3.Connection, keys: Sequence[str], renewals: Mapping[str, Renewal] | None
) -> list[Row]:
    """The rows of some keys with their present expiry. `renewals` are from the TTL log; None reads it from the file."""
    if renewals is not None:
        return renewed(read_rows(connection, keys), renewals)
    with snapshot(connection):
        return renewed(read_rows(connection, keys), _read_log(connection).of(keys))


def _read_log(connection: sqlite3.Connection) -> TtlLog:
    return TtlLog(*read_log(connection))
