"""The operations of a unit of work. Each loads its entry, then acts in memory without pausing: so it is atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from ingestd.api.store import Field, State

from .cache import Entries, Entry, SetEntry, set_key

__all__ = ["CachedState"]


class CachedState(State):
    """`seen` are the entries the unit has read or written, `written` the latter, each as often as it has.

    One that was seen, let go of and loaded again is among them twice, as two; so is one that died, and what came after.
    """

    __slots__ = ("_missed", "_starts", "_weighed", "entries", "now", "seen", "written")

    def __init__(self, entries: Entries, now: int) -> None:
        self.now = now
        self.entries = entries
        self.seen: list[Entry] = []
        self.written: list[Entry] = []
        self._starts = [(0, 0)]
        """Of its parts, in `seen` and `written`."""
        self._missed: str | None = None
        self._weighed: _Weighed | None = None

    def undo(self, part: int | None = None) -> None:
        """Take back what the unit, or a part of it, wrote and no commit holds yet; who has seen it is refused."""
        for entry in self.written if part is None else self.part(part)[1]:
            if entry.dirty:
                self.entries.kill(entry)

    @property
    def size(self) -> int:
        weighed = self._weighed
        if weighed is None:
            weighed = self._weighed = _Weighed()
        weighed.add(self.seen)
        return weighed.size

    def begin_part(self) -> int:
        """What follows is another part of the unit, whose number this returns."""
        self._starts.append((len(self.seen), len(self.written)))
        return len(self._starts) - 1

    @property
    def parts(self) -> int:
        """How many there are."""
        return len(self._starts)

    def part(self, number: int) -> tuple[list[Entry], list[Entry]]:
        """What a part has seen and written."""
        ends = self._starts[number + 1] if number + 1 < self.parts else (len(self.seen), len(self.written))
        (seen, written), (seen_end, written_end) = self._starts[number], ends
        return self.seen[seen:seen_end], self.written[written:written_end]

    def _at_hand(self, key: str) -> Entry | None:
        """As `look`, of what is in memory: most is, and a coroutine more for each would cost as much as the work."""
        entry = self.entries.known(key)
        if entry is not None:
            self.seen.append(entry)
        return entry

    async def look(self, key: str) -> Entry:
        entry = self._at_hand(key)
        if entry is None:
            missed, self._missed = self._missed, key
            entry = await self.entries.get(key, missed)
            self.seen.append(entry)
        return entry

    def _live(self, entry: Entry) -> str | None:
        return None if entry.expires is not None and entry.expires < self.now else entry.value

    def _set(self, entry: Entry, present: str | None, value: str, ttl: int | None, *, sliding: bool = False) -> None:
        expires = None if ttl is None else self.now + ttl
        if value != present:  # where the old one is over, its row may be gone from the file soon
            entry.written = None
            entry.sliding = sliding
        # A life is never shortened by the same value again.
        elif entry.expires is None or (expires is not None and expires <= entry.expires):
            return
        entry.value, entry.expires = value, expires
        if entry.fields is not None:
            entry.fields.clear()
        self._changed(entry)

    def _changed(self, entry: Entry) -> None:
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
        self, key: str, fields: Mapping[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        if not fields:
            return 0
        entry = self._at_hand(key) or await self.look(key)
        changed, gone = entry.merge(fields, keep, keep_size)
        if changed:
            self._changed(entry)
        return gone

    async def fields(self, key: str) -> dict[str, Field]:
        entry = self._at_hand(key) or await self.look(key)
        return {} if entry.fields is None else dict(entry.fields.items())

    async def _set_of(self, key: str) -> SetEntry:
        entry = await self.look(set_key(key))
        assert isinstance(entry, SetEntry)
        return entry

    def _is_over(self, entry: SetEntry) -> bool:
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
        if self._is_over(entry):
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
        there = [member for member in members if member in entry.members]
        if there:
            entry.remove(there)
            self._changed(entry)

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        entry = await self._set_of(key)
        if self._is_over(entry):
            return []
        if since is None:
            found = [*entry.members.items()]
        else:  # from the end: seldom all are asked for
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
        start = self._starts[-1][0]
        # An entry with changes that are not stored yet may still be invalidated. Then this unit must know it.
        self.seen[start:] = [
            entry
            for entry in self.seen[start:]
            if entry.key not in gone or entry.dirty or entry.in_flight or entry.invalidated
        ]
        self._weighed = None
        self.entries.forget(gone)


class _Weighed:
    """The weight of the entries that a unit has seen. Each is weighed once, however often its unit has seen it."""

    __slots__ = ("_ids", "_number", "size")

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._number = 0
        self.size = 0

    def add(self, seen: Sequence[Entry]) -> None:
        """Weigh the entries behind those that were weighed before."""
        new = {id(entry): entry.weight for entry in seen[self._number :] if id(entry) not in self._ids}
        self._ids.update(new)
        self._number = len(seen)
        self.size += sum(new.values())
