"""A transaction that ignores writes. `ingestd forget` uses it to learn what a plugin would delete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ingestd.api.store import Field, State

__all__ = ["ReadOnlyState"]


class ReadOnlyState(State):
    """Reads from the store and ignores writes. Later operations do not see them either.

    It does not find the keys in `gone`. The plugin has asked it to delete the keys in `deleted`.
    """

    def __init__(self, state: State, gone: Collection[str] = ()) -> None:
        self.now = state.now
        self.deleted: set[str] = set()
        self._state = state
        self._gone = gone

    def on_commit(self, call: Callable[[], None]) -> None:
        """Never called: this transaction is not committed."""

    async def get(self, key: str) -> str | None:
        return None if key in self._gone else await self._state.get(key)

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        return await self.get(key)

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        return await self.get(key) == expected

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        present = await self.get(key)
        return candidate if present is None else present, present is None

    async def delete(self, key: str) -> None:
        self.deleted.add(key)

    async def merge(
        self,
        key: str,
        fields: Mapping[str, Field],
        *,
        keep: int | None = None,
        keep_size: int | None = None,
        ttl: int | None = None,
    ) -> int:
        return 0

    async def fields(self, key: str) -> dict[str, Field]:
        return {} if key in self._gone else await self._state.fields(key)

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
        pass

    async def pull(self, key: str, members: Collection[str]) -> None:
        pass

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        return [] if key in self._gone else await self._state.window(key, since, until)

    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        await self._state.load(keys, sets)
