"""Connecting to the database, its transactions, and disconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ingestd.api.errors import SinkRetry

__all__ = ["atomic", "connect", "disconnect"]

_CONNECTING = 10.0
_HANGING_UP = 2.0


class _Loop:
    """The event loop as asyncpg gets it: it retrieves the exceptions of asyncpg's futures.

    asyncpg abandons two kinds of futures, and fails them when the connection ends. One is that of a COPY that begins
    after the server has ended the session, but before the end of the connection has arrived. The other is that of a
    connection attempt that is cancelled. Nobody awaits these futures, so asyncio would log their exceptions as errors.
    The operation itself has raised its own error by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def create_future(self) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        future.add_done_callback(_retrieve)
        return future


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def connect(asyncpg: Any, url: str, application: str) -> Any:
    named = "application_name=" in url
    try:
        connection = await asyncpg.connect(
            url,
            timeout=_CONNECTING,
            server_settings=None if named else {"application_name": application},
            loop=_Loop(asyncio.get_running_loop()),
        )
    except TimeoutError as error:
        raise SinkRetry(f"PostgreSQL did not answer within {_CONNECTING:g} s") from error
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        await disconnect(connection)
        raise SinkRetry(f"the database's encoding is {encoding}, which lacks some characters: it must be UTF8")
    return connection


@asynccontextmanager
async def atomic(connection: Any, isolation: str | None = None) -> AsyncIterator[None]:
    """A transaction, or within one a part that fails alone, if the server refuses a statement.

    After any other end, as a cancellation, close the connection. No rollback is sent then: a server that is gone
    without a word would not answer it, and nothing would end the wait.
    """
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) is not None:
            await transaction.rollback()
        raise
    await transaction.commit()


async def disconnect(connection: Any) -> None:
    """Close the connection. Waits a while until the server has cancelled its statement, which may wait for a lock."""
    with suppress(Exception):
        async with asyncio.timeout(_HANGING_UP):
            await connection.close()
