"""State as one event reads and changes it on Redis: each operation takes effect at once, for all daemons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ingestd.api.errors import Unavailable
from ingestd.api.store import Field, State

from .link import Link
from .memory import Memory

__all__ = ["RedisState", "field_of", "pairs"]


class RedisState(State):
    def __init__(self, link: Link, now: int, memory: Memory) -> None:
        self.now = now
        self._link = link
        self._store_id = link.store_id
        self._memory = memory

    def check(self) -> None:
        """Raises `Unavailable` where the store has lost data since this unit began, and with it part of the unit."""
        if self._link.store_id != self._store_id:
            raise Unavailable("Events cannot be stored at the moment. Send it again.")

    async def _ask(self, *operation: Any) -> Any:
        self.check()
        return await self._link.ask(*operation)

    def _note(self, key: str, value: str | None, ttl: int | None = None) -> None:
        self._memory.note(key, value, None if ttl is None else self.now + ttl)

    async def get(self, key: str) -> str | None:
        value = _text(await self._ask("get", self.now, key))
        self._note(key, value)
        return value

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        previous = _text(await self._ask("put", self.now, key, value, ttl))
        self._note(key, value, ttl)
        return previous

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        done = bool(await self._ask("swap", self.now, key, expected, value, ttl))
        if done:
            self._note(key, value, ttl)
        else:
            self._memory.forget(key)
        return done

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        value, is_new = await self._ask("renew", self.now, key, candidate, ttl)
        self._note(key, value, ttl)
        return value, is_new

    async def delete(self, key: str) -> None:
        await self._ask("delete", self.now, key)
        self._memory.forget(key)

    async def merge(
        self, key: str, fields: Mapping[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        if not fields:
            return 0
        self._memory.forget(key)
        given = [(name, field.at, field.value) for name, field in fields.items()]
        return int(await self._ask("merge", self.now, key, given, keep, keep_size))

    async def fields(self, key: str) -> dict[str, Field]:
        return {name: field_of(raw) for name, raw in pairs(await self._ask("fields", self.now, key))}

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
        await self._ask("push", self.now, key, member, at, keep, first, since, ttl)

    async def pull(self, key: str, members: Collection[str]) -> None:
        await self._ask("pull", self.now, key, [*members])

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        return [(member, int(at)) for member, at in pairs(await self._ask("window", self.now, key, since, until))]

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
