"""What this daemon remembers of values on Redis; and a unit of work on nothing else, checked when it is appended."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Never

from ingestd.api.errors import WriteConflict
from ingestd.api.store import Field, State

from ..text_memory import text_memory

__all__ = ["Memory", "RecalledState"]

_MOST = 50_000  # values; there are at most twice as many
_SIZE = 20 << 20  # bytes of these: usual ones take 400 each
_LARGEST = 512  # bytes: a value that is larger is asked for each time
_BESIDE = 300  # bytes of an entry beside its value
_LIFE = 600.0  # seconds

Remembered = tuple[str | None, int | None]
"""A value and when it is over, None where it is not: or no value."""


class Memory:
    """Values as they were when this daemon last read or wrote them: others may have changed them since.

    What nobody asks for is gone within twice `_LIFE`. Large values are not kept: only a hostile caller has many.
    """

    def __init__(self) -> None:
        self._young: dict[str, Remembered] = {}
        self._old: dict[str, Remembered] = {}
        self._size = 0
        """Bytes of the young ones, and of those that have been forgotten since."""
        self._since = time.monotonic()

    def note(self, key: str, value: str | None, expires: int | None) -> None:
        if len(self._young) >= _MOST or self._size >= _SIZE or time.monotonic() - self._since > _LIFE:
            self._young, self._old, self._since, self._size = {}, self._young, time.monotonic(), 0
        memory = _memory_of(value)
        if memory <= _LARGEST:
            before = self._young.get(key)
            if before is None:
                self._size += _BESIDE + memory
            elif before[0] != value:
                self._size += memory - _memory_of(before[0])
            self._young[key] = value, expires
        else:
            self.forget(key)

    def recall(self, key: str) -> Remembered | None:
        found = self._young.get(key)
        if found is None and (found := self._old.pop(key, None)) is not None:
            self.note(key, *found)
        return found

    def clear(self) -> None:
        self._young, self._old, self._size = {}, {}, 0

    def forget(self, key: str) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)


def _memory_of(value: str | None) -> int:
    return 0 if value is None else text_memory(value)


class RecalledState(State):
    """Serves operations that change no value; any other one raises `WriteConflict`.

    `seen` is what batch.lua is to check and renew.
    """

    __slots__ = ("_memory", "failed", "now", "seen")

    def __init__(self, memory: Memory, now: int) -> None:
        self.now = now
        self.seen: list[tuple[Any, ...]] = []
        self.failed = False
        """Whether it has raised: whoever took that for an answer must not be believed."""
        self._memory = memory

    def _fail(self) -> Never:
        self.failed = True
        raise WriteConflict

    def _recall(self, key: str) -> str | None:
        found = self._memory.recall(key)
        if found is None or (found[1] is not None and found[1] < self.now):
            self._fail()
        return found[0]

    def _renew(self, key: str, value: str, ttl: int | None) -> None:
        if ttl is None:
            self._fail()
        self.seen.append((key, value, ttl))

    async def get(self, key: str) -> str | None:
        value = self._recall(key)
        self.seen.append((key, value))
        return value

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        if self._recall(key) != value:
            self._fail()
        self._renew(key, value, ttl)
        return value

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        present = self._recall(key)
        if present != expected:
            self.seen.append((key, present))
            return False
        if present != value:
            self._fail()
        self._renew(key, value, ttl)
        return True

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        present = self._recall(key)
        if present is None:
            self._fail()
        self._renew(key, present, ttl)
        return present, False

    async def delete(self, key: str) -> None:
        self._fail()

    async def merge(
        self, key: str, fields: Mapping[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        self._fail()

    async def fields(self, key: str) -> dict[str, Field]:
        self._fail()

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
        self._fail()

    async def pull(self, key: str, members: Collection[str]) -> None:
        self._fail()

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        self._fail()

    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        """What is not remembered is not asked for."""
