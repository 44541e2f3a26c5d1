"""Connections to the primary: the server of the URL, or the server that Sentinels name."""

from __future__ import annotations

import asyncio
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

__all__ = ["PAUSE", "address_of", "answer_within", "connection_options", "greet", "make_pool", "stood_still"]

PAUSE = 0.05  # seconds before another attempt

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


def stood_still(since: int, timeout: float) -> bool:
    """Whether a failed attempt took twice its time: this process stood still (Ctrl-Z). `since` is by `monotonic`."""
    return monotonic() - since >= 2000 * timeout


async def answer_within(seconds: float, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The answer within seconds in which this process runs. Raises `RedisError`, `OSError`, `TimeoutError`."""
    began = monotonic()
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except (RedisError, OSError, TimeoutError):
        if not stood_still(began, seconds):
            raise
    await asyncio.sleep(PAUSE)  # what has failed with this attempt ends first, such as a cluster's refresh
    return await answer_within(seconds, ask)


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
