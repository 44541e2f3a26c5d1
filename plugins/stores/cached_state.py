"""The operations of a transaction. Each loads its entry, then acts in memory without pausing: so it is atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from ingestd.api.store import Field, State

from .cache import Entries
from .entry import KeyState, SetEntry, set_key

__all__ = ["CachedState"]


class CachedState(State):
    """A transaction over a cache.

    `seen` are the entries that it has read or written, `written` the entries that it has written, repetitions possible.
    An entry that was seen, evicted and loaded again is among them as two objects, and so is an invalidated one.
    """

    __slots__ = ("_calls", "_missed", "_weighed", "entries", "now", "seen", "written")

    def __init__(self, entries: Entries, now: int) -> None:
        self.now = now
        self.entries = entries
        self.seen: list[KeyState] = []
        self.written: list[KeyState] = []
        self._missed: str | None = None
        self._calls: list[Callable[[], None]] | None = None
        self._weighed: _Weighed | None = None

    @property
    def size(self) -> int:
        weighed = self._weighed
        if weighed is None:
            weighed = self._weighed = _Weighed()
        weighed.add(self.seen)
        return weighed.size

    def on_commit(self, call: Callable[[], None]) -> None:
        if self._calls is None:
            self._calls = []
        self._calls.append(call)

    def committed(self) -> None:
        """Make the calls of `on_commit`, once the transaction is durable."""
        calls, self._calls = self._calls, None
        for call in calls or ():
            call()

    def undo(self) -> None:
        """Undo the writes that no commit holds yet. Transactions that have read them are refused."""
        for entry in self.written:
            if entry.dirty:
                self.entries.invalidate(entry)

    def _at_hand(self, key: str) -> KeyState | None:
        """Like `look`, for an entry in memory. Most are, and another coroutine would cost as much as the work."""
        entry = self.entries.known(key)
        if entry is not None:
            self.seen.append(entry)
        return entry

    async def look(self, key: str) -> KeyState:
        entry = self._at_hand(key)
        if entry is None:
            missed, self._missed = self._missed, key
            entry = await self.entries.get(key, missed)
            self.seen.append(entry)
        return entry

    def _live(self, entry: KeyState) -> str | None:
        return None if entry.expires is not None and entry.expires < self.now else entry.value

    def _set(self, entry: KeyState, present: str | None, value: str, ttl: int | None, *, sliding: bool = False) -> None:
        expires = None if ttl is None else self.now + ttl
        if value != present:  # if the old value has expired, its row may soon be gone from the file
            entry.written = None
            entry.sliding = sliding
        # Writing the same value again never shortens its life.
        elif entry.expires is None or (expires is not None and expires <= entry.expires):
            return
        entry.value, entry.expires = value, expires
        if entry.fields is not None:
            entry.fields.clear()
        self._changed(entry)

    def _changed(self, entry: KeyState) -> None:
        entry.dirty = True
        self.written.append(entry)

    async def get(self, key: str) -> str | None:
        return self._live(self._at_hand(key) or await self.look(key))

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        entry = self._at_hand(key) or await self.look(key)
        previous = self._live(entry)
        self._set(entry, previous, value, ttl)
        return previous

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        entry = self._at_hand(key) or await self.look(key)
        if self._live(entry) != expected:
            return False
        self._set(entry, expected, value, ttl)
        return True

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        entry = self._at_hand(key) or await self.look(key)
        present = self._live(entry)
        value = candidate if present is None else present
        self._set(entry, present, value, ttl, sliding=True)
        return value, present is None

    async def delete(self, key: str) -> None:
        entry = await self.look(key)
        if not entry.absent:
            entry.clear()
            self.entries.deleted = True
            self._changed(entry)
        members = await self._set_of(key)
        if members.members:
            members.remove([*members.members])
            self.entries.deleted = True
            self._changed(members)

    async def merge(
        self,
        key: str,
        fields: Mapping[str, Field],
        *,
        keep: int | None = None,
        keep_size: int | None = None,
        ttl: int | None = None,
    ) -> int:
        if not fields:
            return 0
        entry = self._at_hand(key) or await self.look(key)
        changed, gone = entry.merge(fields, keep, keep_size, self.now, ttl)
        if changed:
            self._changed(entry)
        return gone

    async def fields(self, key: str) -> dict[str, Field]:
        entry = self._at_hand(key) or await self.look(key)
        return {} if entry.fields is None or self._has_expired(entry) else dict(entry.fields.items())

    async def _set_of(self, key: str) -> SetEntry:
        entry = await self.look(set_key(key))
        assert isinstance(entry, SetEntry)
        return entry

    def _has_expired(self, entry: KeyState) -> bool:
        return entry.expires is not None and entry.expires < self.now

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
        entry = await self._set_of(key)
        if self._has_expired(entry):
            entry.remove([*entry.members])
        entry.add(member, at, None if ttl is None else self.now + ttl, self.entries.numbers)
        if since is not None and next(iter(entry.members.values())) < since:
            entry.remove([each for each, time in entry.members.items() if time < since])
        excess = len(entry.members) - keep
        if excess > 0:
            entry.remove([*islice(entry.members, int(first), int(first) + excess)])
        self._changed(entry)

    async def pull(self, key: str, members: Collection[str]) -> None:
        entry = await self._set_of(key)
        there = [member for member in {*members} if member in entry.members]
        if there:
            entry.remove(there)
            self._changed(entry)

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        entry = await self._set_of(key)
        if self._has_expired(entry):
            return []
        if since is None:
            found = [*entry.members.items()]
        else:  # from the end, because most callers want only the newest members
            found = []
            for each in reversed(entry.members.items()):
                if each[1] < since:
                    break
                found.append(each)
            found.reverse()
        if until is not None:
            while found and found[-1][1] > until:
                found.pop()
        return found

    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        wanted = {*keys, *map(set_key, sets)}
        await asyncio.gather(*(self.entries.get(key) for key in wanted if self.entries.known(key) is None))

    def release(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        gone = {*keys, *map(set_key, sets)}
        # An entry with changes that are not stored yet may still be invalidated. Then this transaction must know it.
        self.seen = [
            entry for entry in self.seen if entry.key not in gone or entry.dirty or entry.in_flight or entry.invalidated
        ]
        self._weighed = None
        self.entries.forget(gone)


class _Weighed:
    """The weight of the entries that a transaction has seen. Each is weighed once."""

    __slots__ = ("_ids", "_number", "size")

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._number = 0
        self.size = 0

    def add(self, seen: Sequence[KeyState]) -> None:
        """Weigh the entries behind those that were weighed before."""
        new = {id(entry): entry.weight for entry in seen[self._number :] if id(entry) not in self._ids}
        self._ids.update(new)
        self._number = len(seen)
        self.size += sum(new.values())
