"""The cache of state: entries in memory, the order of their use, and loading from the storage."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from itertools import count, takewhile
from typing import Any

from .entry import KeyState, Row, make_entry

__all__ = ["Entries", "Load", "Loaded"]

_MARK = ""  # the key of an entry that only marks a place in the order of use

Loaded = Callable[[Sequence[Row] | BaseException], None]
Load = Callable[[Sequence[str], Loaded], None]
"""Starts to read the rows of some keys. Calls back in the event loop with the rows found, or with an error.

Raises `Unavailable`, without a call, if the read cannot start.
"""


class Entries:
    """At most `limit` entries of at most `size` bytes. Entries not yet on disk come on top and are never evicted."""

    def __init__(
        self,
        limit: int,
        load: Load,
        members: int = 0,
        definitely_absent: Callable[[str], bool] = lambda key: False,
        *,
        size: int = 1 << 62,
    ) -> None:
        """`definitely_absent` returns True only for keys that the file does not have."""
        self.numbers = count(members + 1)
        """Numbers for new members of sets. `members` is the highest number used so far."""
        self._definitely_absent = definitely_absent
        self._limit = limit
        self._size = size
        self.weight = 0
        """Approximate memory of all entries, in bytes."""
        self._load_rows = load
        self._known: OrderedDict[str, KeyState] = OrderedDict()
        self._wanted: dict[str, list[asyncio.Future[None]]] = {}
        self._loading: dict[str, list[asyncio.Future[None]]] = {}
        """Futures of the callers that wait for a key to be loaded."""
        self._together: dict[str, set[str]] = {}
        """For each kind of entry that was missed, the kinds that transactions missed next."""
        self._beginning = False
        """Whether a load is scheduled."""
        self._invalidated: set[str] = set()
        """Keys whose row the commit in progress still changes, although their entry was invalidated."""
        self.pinned: frozenset[str] = frozenset()
        """Keys that are not evicted once they are loaded."""
        self.hits = 0
        self.ruled_out = 0
        self.misses = 0
        """How many look-ups found the entry in memory, found it definitely absent, and had to read the file."""
        self.deleted = False
        """Whether a transaction has deleted something since the flag was last cleared."""

    def known(self, key: str) -> KeyState | None:
        """The entry, if it is in memory or definitely absent. The caller may change it until it next awaits."""
        entry = self._known.get(key)
        if entry is not None:
            self._known.move_to_end(key)
            self.hits += 1
        elif self._definitely_absent(key):
            self.ruled_out += 1
            self._let_go(1)
            entry = self._add(key, None)
        return entry

    def _add(self, key: str, row: tuple[Any, Any, Any] | None) -> KeyState:
        entry = self._known[key] = make_entry(key, row)
        entry.weight = entry.weigh()
        self.weight += entry.weight
        return entry

    def replace(self, entry: KeyState) -> None:
        """Hold this entry instead of the present entry of its key."""
        if entry.key in self._known:
            self._remove(entry.key)
        self._known[entry.key] = entry
        entry.weight = entry.weigh()
        self.weight += entry.weight

    def _remove(self, key: str) -> None:
        self.weight -= self._known.pop(key).weight

    def weigh(self, entry: KeyState) -> None:
        """Count the weight of an entry anew after a change."""
        if self._known.get(entry.key) is entry:
            before, entry.weight = entry.weight, entry.weigh()
            self.weight += entry.weight - before

    @property
    def count(self) -> int:
        """Number of entries in memory."""
        return len(self._known)

    async def get(self, key: str, after: str | None = None) -> KeyState:
        """The entry, from memory or from the file. The caller may change it until it next awaits.

        `after` is the key that the caller missed before. If both keys belong to one visitor, later misses of the first
        kind load the second kind too. This saves a second read.
        """
        entry = self.known(key)
        if entry is None:
            self.misses += 1
            if after is not None:
                self._learn(after, key)
        while entry is None:  # the entry may have been evicted before this task ran
            future = asyncio.get_running_loop().create_future()
            self._wait(key, future)
            await future
            entry = self._known.get(key)
        return entry

    def _learn(self, missed: str, key: str) -> None:
        before, _, digest = missed.partition(":")
        kind, _, same = key.partition(":")
        if digest == same and kind != before:
            self._together.setdefault(before, set()).add(kind)

    def _wait(self, key: str, future: asyncio.Future[None]) -> None:
        """Join a load of the key. All misses of one loop turn, or during one load, share the next statement."""
        waiting = self._loading.get(key)
        if waiting is None:
            waiting = self._wanted.get(key)
        if waiting is not None:
            waiting.append(future)
            return
        self._wanted[key] = [future]
        kind, _, digest = key.partition(":")
        for other in self._together.get(kind, ()):
            beside = f"{other}:{digest}"
            if beside not in self._known and beside not in self._loading:
                self._wanted.setdefault(beside, [])
        if not self._loading and not self._beginning:
            self._beginning = True
            # At the end of the turn, to include its other misses. Without a context, since the load has many callers.
            asyncio.get_running_loop().call_soon(self._begin, context=Context())

    def _begin(self) -> None:
        """Load the wanted keys. Wait if the commit in progress still changes one of their rows."""
        self._beginning = False
        if self._loading or not self._wanted or not self._invalidated.isdisjoint(self._wanted):
            return
        self._loading, self._wanted = self._wanted, {}
        try:
            self._load_rows([*self._loading], self._loaded)
        except Exception as error:  # noqa: BLE001 - the waiting callers raise it
            self._loaded(error)

    def _loaded(self, rows: Sequence[Row] | BaseException) -> None:
        loading, self._loading = self._loading, {}
        error = rows if isinstance(rows, BaseException) else None
        if not isinstance(rows, BaseException):
            self._let_go(len(loading))
            found = {row[0]: row[1:] for row in rows}
            for key in loading:
                if key not in self._known:  # it may have been definitely absent meanwhile, and then written
                    self._add(key, found.get(key))
        for waiting in loading.values():
            for future in waiting:
                _settle(future, error)
        self._begin()

    def _let_go(self, room: int) -> None:
        excess = len(self._known) + room - self._limit
        if excess > 0 or self.weight > self._size:
            for key in [*self._oldest(excess, self.weight - self._size)]:
                self._remove(key)

    def _oldest(self, count: int, weight: int) -> Iterable[str]:
        """The oldest entries: at least `count`, of at least `weight` bytes together, as far as there are any."""
        # Entries not yet on disk are in use, so few of them are among the oldest.
        for key, entry in self._known.items():
            if count <= 0 and weight <= 0:
                return
            if not entry.dirty and not entry.in_flight and key not in self.pinned:
                count -= 1
                weight -= entry.weight
                yield key

    def end_commit(self, written: Iterable[KeyState]) -> None:
        """End the commit in progress, whether it succeeded or failed."""
        for entry in written:
            entry.in_flight = False
        self._invalidated.clear()
        self._let_go(0)
        if self._wanted:
            self._begin()

    def invalidate(self, entry: KeyState) -> None:
        """Forget an entry whose state was never stored, and mark it so that its readers fail."""
        entry.invalidated = True
        entry.dirty = False
        if self._known.get(entry.key) is entry:
            self._remove(entry.key)
            if entry.in_flight:
                self._invalidated.add(entry.key)

    def set_ends(self, ends: Iterable[tuple[str, int]]) -> None:
        """Give entries in memory an end if they have none, as the caller does in the file."""
        for key, end in ends:
            entry = self._known.get(key)
            if entry is not None and not entry.absent and entry.expires is None:
                entry.expires = end

    def forget_unused(self) -> None:
        """Drop the entries that nobody has looked up since the last call."""
        if _MARK in self._known:
            unused = [*takewhile(lambda key: key != _MARK, self._known)]
            self.forget(unused)
            self._remove(_MARK)
        self._add(_MARK, None)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop entries that were changed in the file outside of commits. Entries about to be written stay."""
        for key in keys:
            entry = self._known.get(key)
            if entry is not None and not entry.dirty and not entry.in_flight:
                self._remove(key)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # every caller may have been cancelled
