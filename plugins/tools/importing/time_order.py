"""Merges files by the times of their lines, so that an order comes after the visits that led to it.

Archives have a folder for each source, such as a shop's backend and its pages. Attribution decides an order once, by
what came before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import CommandError
from ingestd.api.times import format_time, parse_time
from ingestd.validation.validator import UNREADABLE

from .lines import InputFile, Line

__all__ = ["Dated", "MergedLines", "check_order"]

_SLACK = 60_000
"""Milliseconds by which a line may come after later ones. Messages are sorted within this time."""
_MOST_WAITING = 32 << 20  # bytes of lines that wait for earlier ones
_MOST_OPEN = 1000  # files whose times overlap; each takes 120 kB while it is unpacked

_DERIVED = frozenset(["attribution", "attribution_reversal"])


class _Times(msgspec.Struct, gc=False):
    """The members of records and messages with their times, the most trustworthy first."""

    type: Any = None
    receivedAt: Any = None  # noqa: N815 - the names are the lines', here and below
    erasedAt: Any = None  # noqa: N815
    timestamp: Any = None
    originalTimestamp: Any = None  # noqa: N815


_decode = msgspec.json.Decoder(_Times).decode


def _time_of(line: Line, now: int) -> int | None:
    """The time of a line in milliseconds; None if it has none, or one that cannot be right.

    Attributions and reversals have none: attribution derives them again.
    """
    try:
        times = _decode(line.content)
    except UNREADABLE:
        return None
    if isinstance(times.type, str) and times.type in _DERIVED:
        return None
    for text in (times.receivedAt, times.erasedAt, times.timestamp, times.originalTimestamp):
        if isinstance(text, str) and (at := parse_time(text)) is not None:
            return at if 0 < at <= now else None
    return None


class Dated(NamedTuple):
    """A line with its time in milliseconds. Without a time of its own it has the one of the line before."""

    at: int
    line: Line


class MergedLines:
    """The lines of all files by time. Iterate as often as you like: the order is always the same.

    With `sorts`, lines of one file that are out of order by less than a minute are sorted too. Otherwise the lines of
    a file keep their order, as the records of a journal must. Only files whose times overlap are read at once.
    """

    def __init__(self, files: Sequence[InputFile], now: int, *, sorts: bool) -> None:
        """`now` is the time in milliseconds. Later times do not count."""
        self._files = files
        self._now = now
        self._sorts = sorts
        self._first = [
            next((at for line in file.lines() if (at := _time_of(line, now)) is not None), 0) for file in files
        ]

    def __iter__(self) -> Iterator[Dated]:
        slack = _SLACK if self._sorts else 0
        clocks = sorted((at, index) for index, at in enumerate(self._first))
        """The latest time of each file, as a heap. Before a file is read, it is its first time."""
        readers: dict[int, Iterator[Line]] = {}
        waiting: list[tuple[int, int, int, Dated]] = []
        """Lines by their time, their file and their number, as a heap."""
        size = 0
        while clocks:
            clock, index = clocks[0]
            reader = readers.get(index)
            if reader is None:
                reader = readers[index] = self._files[index].lines()
                if len(readers) > _MOST_OPEN:
                    raise CommandError(f"the times of more than {_MOST_OPEN} files overlap: join some of them first")
            line = next(reader, None)
            if line is None:
                heappop(clocks)
                del readers[index]
            else:
                at = _time_of(line, self._now)
                if at is None:
                    at = clock
                latest = max(clock, at)
                heapreplace(clocks, (latest, index))
                heappush(waiting, (at if self._sorts else latest, index, line.number, Dated(at, line)))
                size += len(line.content)
            until = clocks[0][0] - slack if clocks else sys.maxsize
            while waiting and (waiting[0][0] <= until or size > _MOST_WAITING):
                dated = heappop(waiting)[3]
                size -= len(dated.line.content)
                yield dated


def check_order(lines: MergedLines, is_order: Callable[[Line], bool], show: Callable[[], None]) -> None:
    """Raise `CommandError` for a line that is more than a minute before an order, and comes after it.

    `is_order` reads a line as the import does, which takes much longer than the look at its time. So it is asked only
    if any line is out of order. `show` is called for each line.
    """
    if _goes_back(lines, lambda line: True, show) is None:
        return
    found = _goes_back(lines, is_order, show)
    if found is not None:
        line, order = found
        raise CommandError(
            f"{line.line.file}:{line.line.number} has the time {format_time(line.at)}, but comes after the order of"
            f" {format_time(order.at)} in {order.line.file}:{order.line.number}, which would be attributed without it:"
            " sort that file by time, or accept this with --unordered; nothing was stored"
        )


def _goes_back(
    lines: MergedLines, counts: Callable[[Line], bool], show: Callable[[], None]
) -> tuple[Dated, Dated] | None:
    """The first line that is more than a minute before an earlier one that counts, and that one."""
    latest = Dated(0, Line("", 0, b""))
    for dated in lines:
        show()
        if dated.at < latest.at - _SLACK:
            return dated, latest
        if dated.at > latest.at and counts(dated.line):
            latest = dated
    return None
