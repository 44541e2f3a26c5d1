"""Instants are integers: milliseconds since 1970-01-01T00:00:00Z. Here they become text and back."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["format_time", "now", "parse_time"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# RFC 3339, section 5.6: `date-time`; `T` and `Z` in either case, a space for `T` is its own note.
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


def now() -> int:
    """The present, in milliseconds."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


@lru_cache(maxsize=64)  # events of a batch, and those that come at once, have the same
def format_time(at: int) -> str:
    """`2026-11-21T04:05:06.789Z`, always with three digits of milliseconds."""
    seconds, milliseconds = divmod(at, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def parse_time(text: str) -> int | None:
    """Milliseconds of an RFC 3339 date-time (finer digits are cut off), or None for any other text."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    date, minute, second, fraction, offset = match.groups()
    leap = second == "60"  # a leap second has no number of its own: it is the end of the second before
    try:
        whole = datetime.fromisoformat(f"{date}T{minute}:{'59' if leap else second}{offset.upper()}")
        seconds = (whole - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None
    return seconds * 1000 + (999 if leap else int((fraction or "0")[:3].ljust(3, "0")))
