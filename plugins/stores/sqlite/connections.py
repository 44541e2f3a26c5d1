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


class _Runner:
    """Runs functions on the thread of one connection. Raises `Unavailable` while the connection is closed."""

    def __init__(self) -> None:
        self.opened: Connection | None = None

    @property
    def connection(self) -> Connection:
        if self.opened is None:
            raise Unavailable("The store is closed.")
        return self.opened

    async def __call__(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kw: _P.kwargs
    ) -> _T:
        """The result of the function. Raises `Unavailable`."""
        try:
            return await self.connection.submit(work, *args, **kw)
        except (sqlite3.Error, ValueError) as error:  # ValueError: closed meanwhile
            raise _unavailable(error) from error


class SqliteConnections:
    """Four connections for the owner of the file. A guest has two: one to send requests to the owner, one to read."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self.change = _Runner()
        """For commits, and for single writing statements outside of them."""
        self.read = _Runner()
        """For short reads."""
        self.background = _Runner()
        """For long work that delays neither commits nor reads."""
        self.snapshot = _Runner()
        """Holds the snapshot that bounds a checkpoint."""

    async def open(self, *, owner: bool, serving: bool) -> None:
        """Raises `sqlite3.Error`, and like `prepare`. After an error the caller must still call `close`."""
        self.change.opened = await self._connect(writing=True)
        if owner:
            await self.change.connection.submit(prepare, self._path, serving=serving)
        self.read.opened = await self._connect()
        if owner:
            self.background.opened = await self._connect()
            self.snapshot.opened = await self._connect()

    async def _connect(self, *, writing: bool = False) -> Connection:
        return await connect(self._path, writing=writing, busy_timeout=self._busy_timeout)

    async def close(self) -> None:
        # The last connection to close moves the log into the file.
        runners = self.snapshot, self.background, self.read, self.change
        for runner in runners:
            if runner.opened is not None:
                await runner.opened.close()
        for runner in runners:
            runner.opened = None

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
            self.read.connection.submit_then(told, work, *args, **kw)
        except ValueError as error:  # closed meanwhile
            raise _unavailable(error) from error


def _unavailable(error: Exception) -> Unavailable:
    if is_damage(error):
        return Unavailable(f"The store is damaged: {error}.")
    return Unavailable(f"The store cannot be read or written at the moment: {error}.")
