"""Times and positions in the journal: the first record since a time, and the rate at which the journal fills."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ingestd.api.journal import Journal, JournalStats, RecordInfo
from ingestd.api.options import since
from ingestd.config import JournalOptions

__all__ = ["Filling", "Place", "Point", "first_since", "held_behind", "look_at_filling", "parse_place", "parse_point"]

_WINDOW = 5 * 60_000  # milliseconds over which the rate is measured
_SAMPLE = 1000  # records for the mean size


class Point(NamedTuple):
    """A point in the journal, given by an operator: a position or a time."""

    position: int | None
    at: int
    """The time in milliseconds."""


def parse_point(text: str) -> Point:
    """The type of an argument: a position, an age such as `2h`, or a time of ISO 8601, in UTC without an offset."""
    if text.isascii() and text.isdecimal():
        if int(text) < 1:
            raise argparse.ArgumentTypeError("positions start at 1")
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


class Place(NamedTuple):
    """A point of an operator. A position in one of several partitions names its partition."""

    partition: str | None
    point: Point


def parse_place(text: str) -> Place:
    """The type of an argument: as for `parse_point`, or a position in a partition such as `3:1200`."""
    try:
        return Place(None, parse_point(text))
    except argparse.ArgumentTypeError:
        partition, _, position = text.rpartition(":")
        if not partition or not (position.isascii() and position.isdecimal()):
            raise
    return Place(partition, parse_point(position))


async def first_since(journal: Journal, extent: JournalStats, at: int) -> int:
    """The position of the first record received then or later, otherwise the position of the next record.

    Records are in the order of their times, unless the clock was wrong.
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
    """The rate at which a journal fills, and its limits."""

    bytes_per_second: float
    """The rate in the last five minutes."""
    limit: int | None
    """`max_size` in bytes. Records that a sink has not received occupy a part of it until they are delivered."""
    free: int | None
    """The free bytes of the disk, which count without a `limit`. None if they are unknown or never used up."""

    def seconds_left(self, held: float) -> float | None:
        """The time until the journal is full if the held records stay. None if it is unknown or never full."""
        room = self.free if self.limit is None else max(0.0, self.limit - held)
        return None if room is None or not self.bytes_per_second else room / self.bytes_per_second


async def look_at_filling(
    journal: Journal, extent: JournalStats, options: JournalOptions, now: int, *, free: int | None
) -> Filling:
    limit = None if options.max_size is None else int(options.max_size)
    if not options.wait_for_consumers and options.keep_size is not None:
        free = None  # records beyond `keep_size` are removed even if a sink has not received them
    if extent.oldest_at is None:
        return Filling(0.0, limit, free)
    start = max(now - _WINDOW, extent.oldest_at)
    first = await first_since(journal, extent, start)
    size = await held_behind(journal, extent, max(first - 1, extent.last - _SAMPLE))
    sampled = extent.last - max(first - 1, extent.last - _SAMPLE)
    mean = size / sampled if sampled else 0.0
    return Filling((extent.last - first + 1) * mean / max(1.0, (now - start) / 1000), limit, free)


async def held_behind(journal: Journal, extent: JournalStats, position: int) -> float:
    """The estimated bytes of the records after a position, by the mean size of the first ones."""
    behind = max(0, extent.last - max(position, extent.first - 1))
    sample: Sequence[RecordInfo] = await journal.outlines(position, _SAMPLE) if behind else ()
    return behind * sum(each.bytes for each in sample) / len(sample) if sample else 0.0
