"""State as one event reads and changes it on Redis: each operation takes effect at once, for all daemons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ingestd.store import Field, State

from .link import Link

__all__ = ["RedisState", "field_of", "pairs"]


class RedisState(State):
    def __init__(self, link: Link, now: int) -> None:
        self.now = now
        self._link = link

    async def get(self, key: str) -> str | None:
        return _text(await self._link.ask("get", self.now, key))

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        return _text(await self._link.ask("put", self.now, key, value, ttl))

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        return bool(await self._link.ask("swap", self.now, key, expected, value, ttl))

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        value, is_new = await self._link.ask("renew", self.now, key, candidate, ttl)
        return value, is_new

    async def delete(self, key: str) -> None:
        await self._link.ask("delete", self.now, key)

    async def merge(self, key: str, fields: Mapping[str, Field]) -> None:
        if fields:
            given = [(name, field.at, field.value) for name, field in fields.items()]
            await self._link.ask("merge", self.now, key, given)

    async def fields(self, key: str) -> dict[str, Field]:
        return {name: field_of(raw) for name, raw in pairs(await self._link.ask("fields", self.now, key))}

    async def push(
        self,
        key: str,
        member: str,
        at: int,
        *,
        keep: int,
        first: bool = False,
        since: int | None = None,
        ttl: int | None = None,
    ) -> None:
        await self._link.ask("push", self.now, key, member, at, keep, first, since, ttl)

    async def pull(self, key: str, members: Collection[str]) -> None:
        await self._link.ask("pull", self.now, key, [*members])

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        return [(member, int(at)) for member, at in pairs(await self._link.ask("window", self.now, key, since, until))]

    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        """Nothing is kept here: what is asked for at once leaves at once anyway."""


def _text(value: str | bool) -> str | None:
    return value if isinstance(value, str) else None


def field_of(raw: str) -> Field:
    at, _, value = raw.partition("|")
    return Field(int(at), value)


def pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Redis gives pairs one behind the other."""
    return zip(flat[::2], flat[1::2], strict=True)
