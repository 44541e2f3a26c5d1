"""Connections to the primary: to the server of the URL as redis-py has it, or to the one that Sentinels name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from redis import asyncio as aioredis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, ResponseError

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address

from ...redis_urls import check_redis_url, unknown_option
from .sentinel import SentinelPool, Sentinels

__all__ = ["address_of", "make_pool"]


def make_pool(url: str, sentinels: Sequence[Address], *, timeout: float, password: str | None = None) -> ConnectionPool:
    """A pool for `url`. With `sentinels` its host is the name they know the primary by; `password` is theirs.

    Raises `ConfigError`.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": timeout,
        "socket_timeout": None,  # whoever asks has a limit of their own
        "retry": Retry(NoBackoff(), 0),  # and tries again themselves
        "protocol": 2,
        "client_name": "ingestd",
    }
    try:
        check_redis_url(url)
        if sentinels:
            pool = _through(sentinels, url, options, password)
        else:
            pool = aioredis.ConnectionPool.from_url(url, redis_connect_func=_greet, **options)
        pool.make_connection()  # connects to nothing yet, but knows whether it could
    except ValueError as error:
        raise ConfigError(f"this URL is not one of Redis: {error}") from None
    except TypeError as error:  # from redis-py, which makes arguments of the options in the URL
        raise ConfigError(f"this URL has an option redis-py does not know: {unknown_option(error)}") from None
    return pool


def _through(sentinels: Sequence[Address], url: str, options: dict[str, Any], password: str | None) -> ConnectionPool:
    # Not `hostname`, which is in small letters: Sentinels tell names apart by case.
    service = urlsplit(url).netloc.rpartition("@")[2].partition(":")[0]
    if not service:
        raise ValueError("with sentinels its host is the name of the service they watch, as in redis://mymaster/0")
    given = {name: value for name, value in parse_url(url).items() if name not in {"host", "port", "connection_class"}}
    limit = options["socket_connect_timeout"] / 2  # the primary is to be reached in the other half
    watching = Sentinels(
        service,
        sentinels,
        {**options, "socket_connect_timeout": limit, "socket_timeout": limit, "password": password},
    )
    secure = url.startswith("rediss:")
    return SentinelPool(service, watching, ssl=secure, redis_connect_func=_greet, **options, **given)


async def _greet(connection: AbstractConnection) -> None:
    """What redis-py does on a new connection; then ask whether the server is a primary. Raises `RedisError`."""
    await connection.on_connect()
    await connection.send_command("INFO", "replication")
    try:
        facts = await connection.read_response()
    except ResponseError:  # not for this user, or not on this service
        return
    if b"role:slave" in facts:
        raise ReadOnlyError(f"{address_of(connection) or 'this server'} is a read only replica, not the primary")


def address_of(connection: AbstractConnection) -> str | None:
    """Host and port of the server a connection is to, None where that is a socket of this machine."""
    return f"{connection.host}:{connection.port}" if isinstance(connection, Connection) else None
