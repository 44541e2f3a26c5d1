"""The connections to one file, one for each purpose. Each has a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from ingestd.api.errors import Unavailable

from .connection import Connection, connect, is_damage
from .upgrade import prepare

__all__ = ["SqliteConnections"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class SqliteConnections:
    """Four connections for the owner of the file. A guest has two: one to send requests to the owner, one to read."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._background: Connection | None = None
        """For work that must not delay a commit."""
        self._bound: Connection | None = None
        """Holds the snapshot that bounds a checkpoint."""

    async def open(self, *, owner: bool, serving: bool) -> None:
        """Raises `sqlite3.Error`, and like `prepare`. After an error the caller must still call `close`."""
        self._writer = await self._connect(writing=True)
        if owner:
            await self._writer.submit(prepare, self._path, serving=serving)
        self._reader = await self._connect()
        if owner:
            self._background = await self._connect()
            self._bound = await self._connect()

    async def _connect(self, *, writing: bool = False) -> Connection:
        return await connect(self._path, writing=writing, busy_timeout=self._busy_timeout)

    async def close(self) -> None:
        # The last connection to close moves the log into the file.
        for connection in (self._bound, self._background, self._reader, self._writer):
            if connection is not None:
                await connection.close()
        self._bound = self._background = self._reader = self._writer = None

    def check(self) -> None:
        """Raises `Unavailable` if the connections are closed."""
        _there(self._reader)

    @property
    def writer(self) -> Connection:
        return _there(self._writer)

    @property
    def reader(self) -> Connection:
        return _there(self._reader)

    async def read(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run a short read. Raises `Unavailable`."""
        return await _on(self._reader, work, *args, **kw)

    def read_then(
        self,
        then: Callable[[_T | BaseException], None],
        work: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kw: _P.kwargs,
    ) -> None:
        """As `read`, and calls `then` with the result or the error. Raises `Unavailable` if the file is closed."""

        def told(result: _T | BaseException) -> None:
            then(_unavailable(result) if isinstance(result, sqlite3.Error) else result)

        try:
            _there(self._reader).submit_then(told, work, *args, **kw)
        except ValueError as error:  # closed meanwhile
            raise _unavailable(error) from error

    async def change(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run one writing statement outside of the commits. Raises `Unavailable`."""
        return await _on(self._writer, work, *args, **kw)

    async def background(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Run long work that delays neither commits nor reads. Raises `Unavailable`."""
        return await _on(self._background, work, *args, **kw)

    async def snapshot(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """Begin or end the snapshot that bounds a checkpoint. Raises `Unavailable`."""
        return await _on(self._bound, work, *args, **kw)


async def _on(
    connection: Connection | None,
    work: Callable[Concatenate[sqlite3.Connection, _P], _T],
    *args: _P.args,
    **kw: _P.kwargs,
) -> _T:
    try:
        return await _there(connection).submit(work, *args, **kw)
    except (sqlite3.Error, ValueError) as error:  # ValueError: closed meanwhile
        raise _unavailable(error) from error


def _there(connection: Connection | None) -> Connection:
    if connection is None:
        raise Unavailable("The store is closed.")
    return connection


def _unavailable(error: Exception) -> Unavailable:
    if is_damage(error):
        return Unavailable(f"The store is damaged: {error}.")
    return Unavailable(f"The store cannot be read or written at the moment: {error}.")
