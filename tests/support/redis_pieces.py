"""The journal on Redis as its keys have it: a chain of streams."""

from __future__ import annotations

from typing import Any

import redis

__all__ = ["entries_of_journal", "pieces_of_journal"]


def pieces_of_journal(client: redis.Redis, prefix: str) -> list[str]:
    """The keys of the streams, oldest first."""
    numbers: Any = client.zrange(f"{prefix}journal", 0, -1)
    return [f"{prefix}journal:{number.decode()}" for number in numbers]


def entries_of_journal(client: redis.Redis, prefix: str) -> list[dict[bytes, bytes]]:
    """All records, oldest first, but for those with a replaced body: type (`t`), time (`a`) and body (`b`)."""
    found: list[Any] = [client.xrange(key) for key in pieces_of_journal(client, prefix)]
    return [fields for entries in found for _, fields in entries]
