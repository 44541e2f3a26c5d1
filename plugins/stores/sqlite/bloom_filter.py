"""A Bloom filter of the keys in the file: it saves reading the file for keys that are definitely absent.

Most keys that are not in memory are not in the file either: the session and link of a new or long absent visitor, or
an unseen message id. The filter takes ten bits a key. It never misses a key that exists. At most one in a hundred
absent keys is looked for in the file all the same.

A filter can neither forget removed keys nor grow. So a walk through the tables makes it, after the start and again
whenever it is full. Until the first walk ends, the filter excludes nothing. The keys are counted first, to choose the
size; that takes a twelfth of the walk's time. Both take a tenth of a core, and events do not wait for them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from rbloom import Bloom

from ..entry import set_key
from .connections import SqliteConnections
from .ttl_log import TtlLog

__all__ = ["BloomFilter"]

_SMALLEST, _LARGEST = 1 << 20, 1 << 25  # keys, in 1.3 and 40 MB; with more keys than that it excludes fewer
_WRONG = 0.01  # share of absent keys that may be looked for
_ROWS, _COUNTED = 1000, 10_000  # keys read or counted with one statement
_SHARE = 0.1  # of a core

_STATES = "SELECT key FROM state WHERE key > ? ORDER BY key"
_SETS = "SELECT DISTINCT key FROM member WHERE key > ? ORDER BY key"

_decode = msgspec.json.Decoder(list[str]).decode


class _Filter:
    """A filter for `size` keys. `taken` counts its keys, except for the few that it took for present ones."""

    def __init__(self, size: int) -> None:
        self.taken = 0
        self.bloom = Bloom(size, _WRONG)

    def take(self, key: str) -> None:
        if key not in self.bloom:
            self.bloom.add(key)
            self.taken += 1


class BloomFilter:
    """The filter in use and its replacement. Keys are those of `Entries`: a set and a value have different ones."""

    def __init__(
        self, connections: SqliteConnections, renewals: TtlLog, smallest: int = _SMALLEST, largest: int = _LARGEST
    ) -> None:
        self._connections = connections
        self._renewals = renewals
        self._smallest = smallest
        self._largest = largest
        self._whole: _Filter | None = None
        """Has all keys of the file."""
        self._growing: _Filter | None = None
        """Has the keys walked so far, and all keys written since the walk began."""
        self._enough = 0
        """Number of keys at which the filter in use is replaced."""
        self._walking = asyncio.Lock()  # of two walks at once, the first to end would take the keys of the other

    @property
    def size(self) -> int:
        """Bytes of the filter, 0 until it is made."""
        return 0 if self._whole is None else self._whole.bloom.size_in_bits // 8

    def definitely_absent(self, key: str) -> bool:
        """True if the file does not have this key. False says nothing."""
        return self._whole is not None and key not in self._whole.bloom

    def add(self, key: str) -> None:
        """Add a key. Must be called before the key is written to the file."""
        if self._whole is not None:
            self._whole.take(key)
        if self._growing is not None:
            self._growing.take(key)

    async def step(self) -> None:
        """Make the filter if it is missing or full. Raises `Unavailable`."""
        if self._whole is None or self._whole.taken >= self._enough:
            await self.remake()

    async def remake(self) -> None:
        """Make a new filter from the present content of the file. Raises `Unavailable`."""
        async with self._walking:
            size, keys = self._smallest, await self._count()
            while self._is_small(size, keys):
                size *= 2
            try:
                while not await self._walk(size):
                    size *= 2
            finally:
                self._growing = None

    def _is_small(self, size: int, keys: int) -> bool:
        # A filter is made at least twice as large as its keys need, so that it lasts.
        return keys > size // 2 and size < self._largest

    async def _walk(self, size: int) -> bool:
        """Returns False if keys were added after the count and the size is now too small."""
        growing = self._growing = _Filter(size)
        async for keys, seconds in self._keys():
            begun = time.perf_counter()
            for key in keys:
                growing.take(key)
            if self._is_small(size, growing.taken):
                return False
            await _rest(seconds + time.perf_counter() - begun)
        self._whole = growing
        self._enough = max(size, 2 * growing.taken)
        return True

    async def _count(self) -> int:
        """Number of keys in the file."""
        keys = 0
        for query in (_STATES, _SETS):
            last: str | None = ""
            while last is not None:
                count, last, seconds = await self._connections.background(_pass_by, query, last)
                keys += count
                await _rest(seconds)
        return keys

    async def _keys(self) -> AsyncIterator[tuple[Sequence[str], float]]:
        """All keys of the file, in portions with the seconds of a core that finding them took."""
        # Writes queued before the walk are not in the new filter. They must reach the file before the walk starts.
        await self._connections.change(_nothing)
        renewed = self._renewals.named()  # some renewed keys have no row yet
        for start in range(0, len(renewed), _ROWS):
            yield renewed[start : start + _ROWS], 0.0
        for query, key_of_row in ((_STATES, str), (_SETS, set_key)):
            last: str | None = ""
            while last is not None:
                keys, seconds = await self._connections.background(_read_keys, query, last)
                yield [*map(key_of_row, keys)], seconds
                last = keys[-1] if len(keys) == _ROWS else None


async def _rest(seconds: float) -> None:
    """Rest after `seconds` of work."""
    await asyncio.sleep(seconds * (1 / _SHARE - 1))


def _nothing(_: sqlite3.Connection) -> None:
    """Do nothing. When it returns, all work queued on the connection before it is done."""


def _pass_by(connection: sqlite3.Connection, query: str, after: str) -> tuple[int, str | None, float]:
    """The number of the next keys, the last one (None at the end), and the seconds of a core that counting took."""
    begun = time.thread_time()
    row = connection.execute(f"{query} LIMIT 1 OFFSET ?", (after, _COUNTED - 1)).fetchone()
    if row is not None:
        count, last = _COUNTED, row[0]
    else:
        (count,), last = connection.execute(f"SELECT count(*) FROM ({query})", (after,)).fetchone(), None  # noqa: S608 - one of two constants
    return count, last, time.thread_time() - begun


def _read_keys(connection: sqlite3.Connection, query: str, after: str) -> tuple[list[str], float]:
    """The next keys, and the seconds of a core that finding them took."""
    begun = time.thread_time()
    (text,) = connection.execute(f"SELECT json_group_array(key) FROM ({query} LIMIT ?)", (after, _ROWS)).fetchone()  # noqa: S608 - one of two constants
    return _decode(text), time.thread_time() - begun
