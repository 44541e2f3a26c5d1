"""Connecting to the database, and disconnecting."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ingestd.api.errors import SinkRetry

__all__ = ["connect", "disconnect"]

_CONNECTING = 10.0
_HANGING_UP = 2.0


async def connect(asyncpg: Any, url: str, application: str) -> Any:
    named = "application_name=" in url
    try:
        connection = await asyncpg.connect(
            url, timeout=_CONNECTING, server_settings=None if named else {"application_name": application}
        )
    except TimeoutError as error:
        raise SinkRetry(f"PostgreSQL did not answer within {_CONNECTING:g} s") from error
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        await disconnect(connection)
        raise SinkRetry(f"the database's encoding is {encoding}, which lacks some characters: it must be UTF8")
    return connection


async def disconnect(connection: Any) -> None:
    """Close the connection. Waits a while until the server has cancelled its statement, which may wait for a lock."""
    with suppress(Exception):
        async with asyncio.timeout(_HANGING_UP):
            await connection.close()
