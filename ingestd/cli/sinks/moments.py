"""Times and positions of the journal: which record came first since a time, and how fast it fills."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ingestd.api.journal import Journal, JournalStats, RecordInfo
from ingestd.api.options import since
from ingestd.config import JournalOptions

__all__ = ["Filling", "Point", "first_since", "held_behind", "look_at_filling", "parse_point"]

_WINDOW = 5 * 60_000  # milliseconds by which the rate goes
_SAMPLE = 1000  # records whose sizes stand for those of all


class Point(NamedTuple):
    """A place in the journal as operators name it: a position or else a time."""

    position: int | None
    at: int
    """In milliseconds."""


def parse_point(text: str) -> Point:
    """The type of an argument: a position, an age such as `2h`, or a time of ISO 8601, in UTC unless it says."""
    if text.isascii() and text.isdecimal():
        if int(text) < 1:
            raise argparse.ArgumentTypeError("positions begin with 1")
        return Point(int(text), 0)
    try:
        return Point(None, since(text))
    except argparse.ArgumentTypeError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        at = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            "expected a time of ISO 8601 such as 2026-11-21T04:05, an age such as 2h, or a position"
        ) from None
    return Point(None, round(at * 1000))


async def first_since(journal: Journal, extent: JournalStats, at: int) -> int:
    """The position of the first record received then or later; that of the next one to come, if there is none.

    Records are in the order of their times, as far as the clock was right.
    """
    low, high = extent.first, extent.last + 1
    while low < high:
        middle = (low + high) // 2
        found = await journal.outlines(middle - 1, 1)
        if not found or found[0].at >= at:
            high = middle
        else:
            low = max(middle, found[0].position) + 1
    return low


class Filling(NamedTuple):
    """How fast a journal fills, and what it has room for."""

    bytes_per_second: float
    """As of the last minutes."""
    limit: int | None
    """`max_size`: what of it the records hold that a sink has not had, stays until it has had them."""
    free: int | None
    """What is free of the disk, where that is known and there is no limit."""

    def seconds_left(self, held: float) -> float | None:
        """Until it is full, if nothing of what is held now goes; None if it never is, or nobody knows."""
        room = self.free if self.limit is None else max(0.0, self.limit - held)
        return None if room is None or not self.bytes_per_second else room / self.bytes_per_second


async def look_at_filling(
    journal: Journal, extent: JournalStats, options: JournalOptions, now: int, *, free: int | None
) -> Filling:
    limit = None if options.max_size is None else int(options.max_size)
    if not options.wait_for_consumers and options.keep_size is not None:
        free = None  # what is too much goes, whoever has not had it
    if extent.oldest_at is None:
        return Filling(0.0, limit, free)
    start = max(now - _WINDOW, extent.oldest_at)
    first = await first_since(journal, extent, start)
    size = await held_behind(journal, extent, max(first - 1, extent.last - _SAMPLE))
    sampled = extent.last - max(first - 1, extent.last - _SAMPLE)
    mean = size / sampled if sampled else 0.0
    return Filling((extent.last - first + 1) * mean / max(1.0, (now - start) / 1000), limit, free)


async def held_behind(journal: Journal, extent: JournalStats, position: int) -> float:
    """The bytes that the records behind a position hold, as far as the first of them tell."""
    behind = max(0, extent.last - max(position, extent.first - 1))
    sample: Sequence[RecordInfo] = await journal.outlines(position, _SAMPLE) if behind else ()
    return behind * sum(each.bytes for each in sample) / len(sample) if sample else 0.0
