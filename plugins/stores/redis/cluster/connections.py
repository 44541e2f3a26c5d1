"""Connections to the primary of a slot, and the URL of a cluster."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address

from ....redis_urls import check_redis_url, unknown_option
from ..servers import connection_options, greet
from .topology import Topology

__all__ = ["ClusterUrl", "SlotPool", "make_topology", "parse_cluster_url"]

_FORM = "expected redis+cluster://host:port,host:port/ or rediss+cluster:// with TLS"

_Find = Callable[[], Awaitable[Address]]


class ClusterUrl(NamedTuple):
    nodes: tuple[Address, ...]
    is_secure: bool
    options: Mapping[str, Any]
    """redis-py's options of the URL, such as the password."""


def parse_cluster_url(url: str) -> ClusterUrl:
    """Raises `ConfigError`."""
    try:
        scheme, separator, rest = url.partition("://")
        match = re.fullmatch(r"([^/?#]*)/?(\?.*)?", rest)
        if not separator or match is None:
            raise ValueError(f"{_FORM}; a cluster has no database numbers, and only names of nodes between // and /")
        user, at, hosts = match[1].rpartition("@")
        try:
            nodes = tuple(Address.parse(host) for host in hosts.split(","))
        except ValueError:
            raise ValueError(f"{_FORM}; each node has a host and a port") from None
        # redis-py reads the rest, as of a single Redis.
        single = f"{scheme.partition('+')[0]}://{user}{at}{nodes[0]}/0{match[2] or ''}"
        check_redis_url(single)
        options = parse_url(single)
    except ValueError as error:
        raise ConfigError(f"this URL is not one of a Redis Cluster: {error}") from None
    given = {name: value for name, value in options.items() if name not in {"host", "port", "db", "connection_class"}}
    return ClusterUrl(nodes, scheme.startswith("rediss"), given)


def make_topology(url: ClusterUrl, *, timeout: float) -> Topology:
    """Raises `ConfigError` if redis-py does not know an option of the URL."""
    # A refresh, and the connection after it, are within the timeout of a caller.
    limit = timeout / 2
    options = {**connection_options(timeout), **url.options, "socket_connect_timeout": limit}
    make: Callable[..., Connection] = SSLConnection if url.is_secure else Connection
    try:
        make(**options)  # does not connect, but checks the options
    except TypeError as error:
        raise ConfigError(f"this URL has an option redis-py does not know: {unknown_option(error)}") from None
    return Topology(url.nodes, options, limit=limit, make_connection=make)


class SlotPool(ConnectionPool):
    """Connections to the present primary of a slot."""

    def __init__(self, topology: Topology, slot: int, url: ClusterUrl, *, timeout: float) -> None:
        self.slot = slot
        super().__init__(
            connection_class=_SecureSlotConnection if url.is_secure else _SlotConnection,
            find=partial(topology.primary_of, slot),
            redis_connect_func=greet,
            **{**connection_options(timeout), **url.options},
        )


class _SlotConnection(Connection):
    def __init__(self, *, find: _Find, **options: Any) -> None:
        super().__init__(**options)
        self._find = find

    async def connect(self) -> None:
        if not self.is_connected:
            try:
                self.host, self.port = await self._find()
            except ConfigError as error:  # the nodes were replaced by others while a daemon runs
                raise ClusterDownError(str(error)) from error
        await super().connect()  # type: ignore[no-untyped-call]  # it is redis-py's

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except (MovedError, AskError, TryAgainError, ClusterDownError):
            await self.disconnect(nowait=True)  # the next command connects to the slot's primary of that time
            raise


class _SecureSlotConnection(_SlotConnection, SSLConnection):
    pass
