"""Writes what was renewed into its rows, once it goes on no more, and keeps the log of renewals short by that.

When the younger half of the log is full, or after a while, what only the older one names is written, in the order of
keys, a few in a commit; that half is removed, and the younger one takes its place.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from .commits import Commits
from .ttl_log import FULL, TtlLog

__all__ = ["WriteBack"]

_AGE = 30  # steps, which the back end takes once a second
_MANY = 128  # rows of one commit: each may be on a page of its own
_PAUSE = 0.005  # seconds between two of them, for other commits
_SORTED = 1000  # keys that are sorted without a pause
_LOG_ROWS = 64  # of the log that are removed in one commit


class WriteBack:
    def __init__(self, renewals: TtlLog, commits: Commits) -> None:
        self._renewals = renewals
        self._commits = commits
        self._steps = 0
        self._turning = asyncio.Lock()

    async def step(self) -> None:
        """Compact the log when it is time to. Raises `Unavailable`."""
        self._steps += not self._renewals.is_empty
        if self._renewals.logged >= FULL or self._steps >= _AGE:
            await self.compact()

    async def compact(self) -> None:
        """Write what only the older half names into its rows, remove that half, and let the younger one be the older.

        Raises `Unavailable`; then it is to be tried again.
        """
        async with self._turning:
            older = self._renewals.of_older_half()
            ordered = await self._in_order(older)
            while some := [*islice(ordered, _MANY)]:
                await self._commits.commit(first=partial(self._write, some))
                await asyncio.sleep(_PAUSE)
            counts = [_LOG_ROWS if older else 0]
            while counts[-1] == _LOG_ROWS:
                await self._commits.commit(also=partial(_remove, self._renewals.bound, counts))
            self._renewals.compact()
            self._steps = 0

    def _write(self, keys: Sequence[str], connection: sqlite3.Connection) -> None:
        """Write rows, before all else in the commit, which may hold other values of these keys.

        Only now is it known what the commits before have left of them; and nothing lands while this one is written.
        """
        values: list[Any] = []
        for key in keys:
            if renewal := self._renewals.of_older_alone(key):
                values += (key, *renewal)
        if values:
            connection.execute(
                f"INSERT INTO state (key, value, expires) VALUES {', '.join(['(?, ?, ?)'] * (len(values) // 3))}"  # noqa: S608 - only marks
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value, fields = NULL, expires = excluded.expires",
                values,
            )

    async def _in_order(self, keys: Sequence[str]) -> Iterator[str]:
        """Those that are to be written. A part at a time, since events wait while they are sorted."""
        parts = []
        for start in range(0, len(keys), _SORTED):
            parts.append(sorted(filter(self._renewals.of_older_alone, keys[start : start + _SORTED])))
            await asyncio.sleep(0)
        return merge(*parts)


def _remove(last: int, counts: list[int], connection: sqlite3.Connection, _: int) -> None:
    done = connection.execute(
        "DELETE FROM renewal WHERE number IN (SELECT number FROM renewal WHERE number <= ? ORDER BY number LIMIT ?)",
        (last, _LOG_ROWS),
    )
    counts.append(done.rowcount)
