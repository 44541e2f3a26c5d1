"""Connections to the primary: the server of the URL, or the server that Sentinels name."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import asyncio as aioredis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address

from ...redis_urls import check_redis_url, unknown_option
from .sentinel import SentinelPool, Sentinels
from .server_clock import monotonic

__all__ = [
    "PAUSE",
    "address_of",
    "answer_within",
    "connection_options",
    "cut",
    "greet",
    "lateness",
    "make_pool",
    "prepare_to_cut",
]

PAUSE = 0.05  # seconds before another attempt
_ATTEMPTS = 3  # a loop that is held again and again must not hide an outage
_LATE = 0.05  # seconds
_DROP = struct.pack("ii", 1, 0)  # of SO_LINGER: on, and for no second

_T = TypeVar("_T")

_DRIVER = DriverInfo()


def connection_options(timeout: float) -> dict[str, Any]:
    """redis-py's options for connections of the link, and for reads."""
    return {
        "socket_connect_timeout": timeout,
        "socket_timeout": None,  # the callers have time limits
        "retry": Retry(NoBackoff(), 0),  # the link tries again
        "protocol": 2,
        "client_name": "ingestd",
        "driver_info": _DRIVER,  # otherwise redis-py reads its version from a file for each connection
    }


def lateness(since: int, seconds: float) -> float:
    """The seconds that an attempt took beyond its time, because this process stood still. `since` is by `monotonic`."""
    return max(0.0, (monotonic() - since) / 1000 - seconds)


async def answer_within(seconds: float, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The answer within seconds in which this process runs. Raises `RedisError`, `OSError`, `TimeoutError`.

    If the process stood still (Ctrl-Z) during an attempt, Redis may have answered, so it is asked again.
    """
    for _ in range(_ATTEMPTS - 1):
        began = monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await ask()
        except (RedisError, OSError, TimeoutError):
            if lateness(began, seconds) < _LATE:
                raise
        await asyncio.sleep(PAUSE)  # what has failed with this attempt ends first, such as a cluster's refresh
    async with asyncio.timeout(seconds):
        return await ask()


def prepare_to_cut(connection: AbstractConnection) -> asyncio.WriteTransport:
    """Prepare an open connection for `cut`. Returns its transport, which redis-py forgets at an error."""
    assert connection._writer is not None
    transport = connection._writer.transport
    # Otherwise Linux sends what it has after the end of the connection too.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
    return transport


async def cut(connection: AbstractConnection, transport: asyncio.WriteTransport | None) -> None:
    """Cut a connection whose server may be dead. Drop what is not sent yet: Redis would do it at any later time."""
    if transport is not None:
        transport.abort()  # redis-py closes it only once all is sent
    await connection.disconnect(nowait=True)


def make_pool(url: str, sentinels: Sequence[Address], *, timeout: float, password: str | None = None) -> ConnectionPool:
    """A pool of connections. Raises `ConfigError`.

    With `sentinels`, the host of the URL is the Sentinels' name of the primary. `password` is for the Sentinels.
    """
    options = connection_options(timeout)
    try:
        check_redis_url(url)
        if sentinels:
            pool = _through(sentinels, url, options, password)
        else:
            pool = aioredis.ConnectionPool.from_url(url, redis_connect_func=greet, **options)
        pool.make_connection()  # does not connect yet, but checks the options
    except ValueError as error:
        raise ConfigError(f"this URL is not one of Redis: {error}") from None
    except TypeError as error:  # redis-py turns the options of the URL into arguments
        raise ConfigError(f"this URL has an option redis-py does not know: {unknown_option(error)}") from None
    return pool


def _through(sentinels: Sequence[Address], url: str, options: dict[str, Any], password: str | None) -> ConnectionPool:
    # Not `hostname`, which is in small letters: the Sentinels distinguish upper and lower case.
    service = urlsplit(url).netloc.rpartition("@")[2].partition(":")[0]
    if not service:
        raise ValueError("with sentinels its host is their name of the primary, as in redis://mymaster/0")
    given = {name: value for name, value in parse_url(url).items() if name not in {"host", "port", "connection_class"}}
    limit = options["socket_connect_timeout"] / 2  # the other half is for the primary
    watching = Sentinels(
        service,
        sentinels,
        {**options, "socket_connect_timeout": limit, "socket_timeout": limit, "password": password},
    )
    secure = url.startswith("rediss:")
    return SentinelPool(service, watching, ssl=secure, redis_connect_func=greet, **options, **given)


async def greet(connection: AbstractConnection) -> None:
    """Greet as redis-py does on a new connection, and check that the server is a primary. Raises `RedisError`."""
    await connection.on_connect()
    await connection.send_command("INFO", "replication")
    try:
        facts = await connection.read_response()
    except ResponseError:  # forbidden to this user, or missing in this service
        return
    if b"role:slave" in facts:
        raise ReadOnlyError(f"{address_of(connection) or 'this server'} is a read only replica, not the primary")


def address_of(connection: AbstractConnection) -> str | None:
    """Host and port of the server; None for a Unix socket."""
    return f"{connection.host}:{connection.port}" if isinstance(connection, Connection) else None
