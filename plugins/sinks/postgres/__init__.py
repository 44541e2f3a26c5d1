"""The `postgres` sink: copies each record into a row of a table.

A batch is one COPY into the table, so it is one transaction: the table has the whole batch or none of it. The unique
index on `id` refuses records that the table already has. Then the sink queries their ids and copies the others. After a
start or a failure records may come again, so the sink queries first.

PostgreSQL has no U+0000 in text or jsonb, so the sink replaces it by U+FFFD in names and values. If the server refuses
the content of a batch, the sink halves it to find and reject the faulty records. After any other error the batch comes
again on a new connection. A new connection checks the table again, and creates it if it is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options, Url, is_local, remote_host
from ingestd.api.sink import Digest, Sink

from .. import not_installed
from ..columns import DataRefused, make_rows, sift
from .client import connect, disconnect
from .errors import told
from .rows import Row, copy, new_rows, row_of
from .table import Table
from .transaction import Transaction, alone

__all__ = ["PostgresOptions", "PostgresSink", "check_url", "not_verified", "register_sinks"]

_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\],]*)(:[0-9]{1,5})?")


class PostgresOptions(Options):
    url: Url
    """postgresql://user:password@host:port/database, with parameters of asyncpg such as `?sslmode=verify-full`."""
    table: str = "ingestd_records"
    """Created if missing. `schema.table` if it is not in the first schema of the user's `search_path`."""


def check_url(url: str, option: str) -> None:
    """Raise `ConfigError` for a URL that asyncpg would refuse. Messages of asyncpg could show parts of a password."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    good = re.match("(?i)postgres(ql)?://", url) is not None and not parts.fragment
    good = good and url.count("@") == parts.netloc.count("@") <= 1 and all(map(_HOST.fullmatch, hosts))
    try:
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{option}: expected postgresql://user:password@host:port/database"
            " (in a password, write / ? # @ : % and letters beyond ASCII as %2F …)"
        )


def not_verified(url: str) -> str | None:
    """The host of a server on another machine whose certificate asyncpg does not verify with its name, or None.

    As asyncpg reads them, the environment has what the URL lacks.
    """
    given = parse_qs(urlsplit(url).query)
    mode = given.get("sslmode", [os.environ.get("PGSSLMODE", "")])[-1]
    if mode.replace("_", "-") == "verify-full":
        return None
    if urlsplit(url).netloc.rpartition("@")[2]:
        return remote_host(url)
    hosts = given.get("host", [os.environ.get("PGHOST", "")])[-1]
    return next((host for host in hosts.split(",") if not is_local(host)), None)


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("postgres", PostgresSink)


class PostgresSink(Sink):
    Options = PostgresOptions
    can_verify = True
    engine = "postgres"

    def __init__(self, name: str, options: PostgresOptions) -> None:
        super().__init__(name, options)
        try:
            self._asyncpg: Any = import_module("asyncpg")
        except ImportError:
            raise not_installed(name, "asyncpg", "postgres") from None
        check_url(options.url, f"sinks.{name}.url")
        self._table = Table(options.table, f"sinks.{name}.table", self._asyncpg)
        self.records = self._table.quoted
        """The table as it stands in SQL."""
        self._connection: Any = None
        self._doubtful = False
        self._look_first = True
        self._missing_indexes: Sequence[str] = ()
        """Statements that make them, as the last check found."""
        self._takes_rows = False
        """Whether the server has taken rows on this connection."""

    def risks(self) -> Sequence[str]:
        found = [
            f"sinks.{self.name}.table: a documented query is slow without an index; run {statement}"
            for statement in self._missing_indexes
        ]
        host = not_verified(self.options.url)
        if host is None:
            return found
        return [
            *found,
            f"sinks.{self.name}.url: the certificate of {host} is not verified, so another server could take its"
            " place and get the password and the records; add sslmode=verify-full, and sslrootcert=FILE",
        ]

    async def open(self) -> None:
        async with self._connected():
            pass

    async def write(self, batch: Sequence[Record]) -> None:
        rows, refused = await make_rows(batch, row_of)
        try:
            async with self._connected() as connection:
                await self._store(connection, [*rows.values()])
        except DataRefused:
            # On a new connection, because the table may have changed. A mismatch with it is not the fault of a record.
            async with self._connected() as connection:
                found, _ = await sift(rows, partial(self._store_part, connection))
                refused |= found
        if refused:
            self._look_first = True  # the others come again
            raise SinkReject(refused)

    async def check(self) -> None:
        async with self._apart() as connection:
            self._missing_indexes = await self._table.check(connection)

    async def digests(self, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        async with self._apart() as connection:
            return await self._table.digests(connection, begin, end, step)

    async def ids(self, begin: int, end: int) -> Sequence[str]:
        async with self._apart() as connection:
            return await self._table.ids(connection, begin, end)

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        async with self._apart() as connection:
            return [dict(row) for row in await connection.fetch(text)]

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Transaction]:
        """A transaction on a connection of its own, and one such transaction after the other."""
        async with self._apart() as connection, alone(connection) as transaction:
            yield transaction

    @asynccontextmanager
    async def _apart(self) -> AsyncIterator[Any]:
        """A connection of its own, for everything but records."""
        with told(with_rows=False):
            connection = await self._connect()
            try:
                yield connection
            finally:
                await disconnect(connection)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The connection. After an error on it, the next one is new, and the table is checked again."""
        if self._doubtful or (self._connection is not None and self._connection.is_closed()):
            await self.close()
        with told(with_rows=False):
            if self._connection is None:
                self._connection = await self._connect()
                self._doubtful = self._look_first = True
                self._takes_rows = False
                await self._table.ensure(self._connection)
        self._doubtful = True
        with told():
            yield self._connection
        self._doubtful = False

    async def _connect(self) -> Any:
        return await connect(self._asyncpg, self.options.url, f"ingestd {self.name}")

    async def _store_part(self, connection: Any, rows: Sequence[Row]) -> None:
        with told():
            await self._store(connection, rows)

    async def _store(self, connection: Any, rows: Sequence[Row]) -> None:
        """Copy the rows that the table does not have yet, in one transaction."""
        if self._look_first:
            new = await new_rows(connection, self._table, rows)
            self._look_first = len(new) < len(rows)
            # A return promises that the server takes rows. So if all rows exist, one is sent, which must be refused
            # only as a duplicate.
            rows = new if new or self._takes_rows else rows[:1]
        try:
            await copy(connection, self._table, rows)
        except self._asyncpg.UniqueViolationError:
            new = await new_rows(connection, self._table, rows)
            if len(new) == len(rows):  # another unique index refuses a row
                raise
            self._look_first = True
            await copy(connection, self._table, new)
        self._takes_rows = True
