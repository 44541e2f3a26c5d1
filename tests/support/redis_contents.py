"""The whole content of a Redis, to search it for texts that must not be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

__all__ = ["redis_contents"]


def redis_contents(client: redis.Redis) -> dict[str, list[bytes]]:
    """The values, fields, members and entries of every key, by key."""
    keys: list[Any] = client.keys()
    return {key.decode(): [*_flat(_read(client, key))] for key in keys}


def _read(client: redis.Redis, key: bytes) -> Any:
    match client.type(key):
        case b"string":
            return client.get(key)
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1)
        case b"stream":
            return client.xrange(key)
        case b"none":  # the key has just expired
            return None
        case other:
            raise AssertionError(f"{key!r} is a {other!r}, which ingestd has no use for")


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from (name, each)
    elif value is not None:
        for each in value:
            yield from _flat(each)
