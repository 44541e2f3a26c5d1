"""Which keys the file may have anything of. Nobody has to look there for one that it certainly has not.

Most that is looked for and not in memory is in no file either: the session and the link of a visitor who is new or has
not been here for long, a message that was not sent before. A Bloom filter tells so for ten bits a key: at most one
in a hundred of those that are not there is looked for all the same, and none that is there is ever missed.

A filter cannot forget what was removed, nor grow. So it is made by a walk through the tables, after the start and
whenever it has taken in as much as it is made for; until the first one is made nothing is ruled out. To know how large
it has to be, the keys are counted before, which takes a twelfth of the walk's time. Both take a tenth of a core, and
events do not wait for them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from rbloom import Bloom

from ..cache import set_key
from .connections import Connections
from .ttl_log import TtlLog

__all__ = ["BloomFilter"]

_SMALLEST, _LARGEST = 1 << 20, 1 << 25  # keys, in 1.3 and 40 MB; of more of them fewer are ruled out
_WRONG = 0.01  # of those that are not there, so many may be looked for
_ROWS, _COUNTED = 1000, 10_000  # at a time
_SHARE = 0.1  # of a core

_STATES = "SELECT key FROM state WHERE key > ? ORDER BY key"
_SETS = "SELECT DISTINCT key FROM member WHERE key > ? ORDER BY key"

_decode = msgspec.json.Decoder(list[str]).decode


class _Filter:
    """For so many keys. `taken` counts those that are in it, but for the few that it did not tell apart."""

    def __init__(self, size: int) -> None:
        self.taken = 0
        self.bloom = Bloom(size, _WRONG)

    def take(self, key: str) -> None:
        if key not in self.bloom:
            self.bloom.add(key)
            self.taken += 1


class BloomFilter:
    """Keys are those of `Entries`, so a set has another one than a value."""

    def __init__(
        self, connections: Connections, renewals: TtlLog, smallest: int = _SMALLEST, largest: int = _LARGEST
    ) -> None:
        self._connections = connections
        self._renewals = renewals
        self._smallest = smallest
        self._largest = largest
        self._whole: _Filter | None = None
        """Has all keys of the file."""
        self._growing: _Filter | None = None
        """Has those that the walk has come by, and all that were written since it began."""
        self._enough = 0
        """With how many keys the whole one is to be made anew."""

    @property
    def size(self) -> int:
        """Bytes of the filter, 0 until it is made."""
        return 0 if self._whole is None else self._whole.bloom.size_in_bits // 8

    def definitely_absent(self, key: str) -> bool:
        """Whether the file has nothing of this key; False may mean either."""
        return self._whole is not None and key not in self._whole.bloom

    def add(self, key: str) -> None:
        """To be called before what is to be written of a key goes to the file."""
        if self._whole is not None:
            self._whole.take(key)
        if self._growing is not None:
            self._growing.take(key)

    async def step(self) -> None:
        """Walk if it is time to. Raises `Unavailable`."""
        if self._whole is None or self._whole.taken >= self._enough:
            await self.remake()

    async def remake(self) -> None:
        """Make the filter anew, of what the file has now. Raises `Unavailable`."""
        size, keys = self._smallest, await self._count()
        while self._is_small(size, keys):
            size *= 2
        try:
            while not await self._walk(size):
                size *= 2
        finally:
            self._growing = None

    def _is_small(self, size: int, keys: int) -> bool:
        # A filter that is half full is one that will not have to be made anew soon.
        return keys > size // 2 and size < self._largest

    async def _walk(self, size: int) -> bool:
        """Returns False where so many keys have come since they were counted that the size is too small."""
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
        """How many keys the file has."""
        keys = 0
        for query in (_STATES, _SETS):
            last: str | None = ""
            while last is not None:
                count, last, seconds = await self._connections.background(_pass_by, query, last)
                keys += count
                await _rest(seconds)
        return keys

    async def _keys(self) -> AsyncIterator[tuple[Sequence[str], float]]:
        """All keys of the file, some at a time, and how many seconds of a core it took to find them."""
        # What was handed over before is not added to the new filter: it is to be in the file when the walk comes by.
        await self._connections.change(_nothing)
        renewed = self._renewals.named()  # some have no row yet
        for start in range(0, len(renewed), _ROWS):
            yield renewed[start : start + _ROWS], 0.0
        for query, key_of_row in ((_STATES, str), (_SETS, set_key)):
            last: str | None = ""
            while last is not None:
                keys, seconds = await self._connections.background(_look, query, last)
                yield [*map(key_of_row, keys)], seconds
                last = keys[-1] if len(keys) == _ROWS else None


async def _rest(seconds: float) -> None:
    """After so many seconds of work."""
    await asyncio.sleep(seconds * (1 / _SHARE - 1))


def _nothing(_: sqlite3.Connection) -> None:
    """Done when all that was handed to the connection before is."""


def _pass_by(connection: sqlite3.Connection, query: str, after: str) -> tuple[int, str | None, float]:
    """How many keys are next, the last of them unless no more come, and how many seconds of a core it took."""
    begun = time.thread_time()
    row = connection.execute(f"{query} LIMIT 1 OFFSET ?", (after, _COUNTED - 1)).fetchone()
    if row is not None:
        count, last = _COUNTED, row[0]
    else:
        (count,), last = connection.execute(f"SELECT count(*) FROM ({query})", (after,)).fetchone(), None  # noqa: S608 - one of two constants
    return count, last, time.thread_time() - begun


def _look(connection: sqlite3.Connection, query: str, after: str) -> tuple[list[str], float]:
    """The next keys, and how many seconds of a core it took to find them."""
    begun = time.thread_time()
    (text,) = connection.execute(f"SELECT json_group_array(key) FROM ({query} LIMIT ?)", (after, _ROWS)).fetchone()  # noqa: S608 - one of two constants
    return _decode(text), time.thread_time() - begun
