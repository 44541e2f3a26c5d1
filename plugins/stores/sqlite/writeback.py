"""Write-back of the TTL log: writes renewed values to their rows once they are idle, and so keeps the log short.

It runs when the younger half of the log is full, or after a while. Keys that only the older half names are written in
key order, a few in a commit. Then the older half is removed, and the younger half becomes the older one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from ingestd.support.pace import Pace

from .commits import Commits
from .ttl_log import FULL, TtlLog

__all__ = ["WriteBack"]

_AGE = 30  # steps, one a second
_MANY = 128  # rows of one commit: each may be on a separate page
_PAUSE = 0.005  # seconds between two commits, for other commits
_SORTED = 1000  # keys that are sorted at once
_LOG_ROWS = 64  # rows of the log that one commit removes


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
        """Write keys that only the older half names, remove that half, and make the younger half the older one.

        Raises `Unavailable`; then the caller must try again.
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
        """Write rows before all other writes of the commit, which may have newer values of these keys.

        Only at this moment is the older half final: earlier commits have ended, and none ends during this one.
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
        """The keys to write, in order. They are sorted in portions, since events wait meanwhile."""
        parts, pace = [], Pace(0.001)
        for start in range(0, len(keys), _SORTED):
            parts.append(sorted(filter(self._renewals.of_older_alone, keys[start : start + _SORTED])))
            await pace.give_way()
        return merge(*parts)


def _remove(last: int, counts: list[int], connection: sqlite3.Connection, _: int) -> None:
    done = connection.execute(
        "DELETE FROM renewal WHERE number IN (SELECT number FROM renewal WHERE number <= ? ORDER BY number LIMIT ?)",
        (last, _LOG_ROWS),
    )
    counts.append(done.rowcount)
