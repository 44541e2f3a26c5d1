"""Conversion between instants and text. An instant is an integer: milliseconds since 1970-01-01T00:00:00Z."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = [
    "FIRST",
    "LAST",
    "by_our_clock",
    "format_time",
    "go_by_system_clock",
    "keep_own_clock",
    "now",
    "parse_time",
    "system_clock_ahead",
]

FIRST = -62_167_219_200_000
"""0000-01-01T00:00:00.000Z, the first instant that RFC 3339 can write in UTC."""
LAST = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant that RFC 3339 can write in UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1 = -62_135_596_800  # seconds: the first instant of `datetime`
_CYCLE = 146_097 * 86_400  # seconds of 400 years, after which the calendar repeats: year 0 is like year 400

# RFC 3339, section 5.6: `date-time`, with `T` and `Z` in either case. Its note allows a space for `T`.
_RFC3339 = re.compile(
    r"(\d{4})(-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):[0-5]\d):([0-5]\d|60)(?:\.(\d+))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)

_LOOKS = 5  # at both clocks
_own: int | None = None
"""Nanoseconds from the start of the machine's monotonic clock to 1970, while the process has a clock of its own."""


def now() -> int:
    """The present instant, by the system's clock. A daemon does not follow its jumps (`keep_own_clock`)."""
    return (time.time_ns() if _own is None else _monotonic() + _own) // 1_000_000


def _monotonic() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # goes on while the machine is suspended


def _difference() -> tuple[int, int]:
    """The duration of a look at both clocks, and the difference between them, in nanoseconds."""
    before, system, after = _monotonic(), time.time_ns(), _monotonic()
    return after - before, system - (before + after) // 2


def keep_own_clock() -> None:
    """Go on from the present instant of the system's clock by the monotonic clock, which never jumps."""
    global _own  # noqa: PLW0603 - a process has one clock
    # The system may let another process run between two looks. The shortest try is the most exact.
    _own = min(_difference() for _ in range(_LOOKS))[1]


def go_by_system_clock() -> None:
    """End what `keep_own_clock` has begun."""
    global _own  # noqa: PLW0603 - a process has one clock
    _own = None


def system_clock_ahead() -> int:
    """Milliseconds by which the system's clock is ahead of `now`; negative if it is behind."""
    return time.time_ns() // 1_000_000 - now()


def by_our_clock(at: int, sent_at: int, received_at: int) -> int:
    """The instant `at` of a client's clock by the daemon's clock.

    `sent_at` is when the client sent the request, by its clock, and `received_at` when it came, by the daemon's. The
    client's clock may be wrong by any amount.
    """
    return received_at - (sent_at - at)


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    if seconds < _YEAR_1:
        return f"0000{_second(seconds + _CYCLE)[4:]}"
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


@lru_cache(maxsize=64)  # events of a batch, and simultaneous events, have equal instants
def format_time(at: int) -> str:
    """`2026-11-21T04:05:06.789Z`, always with three digits of milliseconds.

    Instants before `FIRST` are written as `FIRST`, and after `LAST` as `LAST`. A time with an offset can be either.
    """
    seconds, milliseconds = divmod(min(max(at, FIRST), LAST), 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def parse_time(text: str) -> int | None:
    """The instant of an RFC 3339 date-time, or None for any other text. Digits after milliseconds are cut off."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, day, minute, second, fraction, offset = match.groups()
    leap = second == "60"  # a leap second has no number, so it becomes the last millisecond of the previous second
    shift = 0
    if year == "0000":
        year, shift = "0400", _CYCLE
    try:
        whole = datetime.fromisoformat(f"{year}{day}T{minute}:{'59' if leap else second}{offset.upper()}")
    except ValueError:
        return None
    seconds = (whole - _EPOCH) // timedelta(seconds=1) - shift
    return seconds * 1000 + (999 if leap else int((fraction or "0")[:3].ljust(3, "0")))
