"""Token buckets: a rate, and many buckets at that rate in bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

__all__ = ["Rate", "TokenBuckets"]

_PERIODS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


class Rate(str):
    """So many in a second, minute, hour or day, written as `100/s`, `6000/m`, `10000/h`, `50000/d`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> Rate:
        if not isinstance(text, str) or re.fullmatch(r"[1-9][0-9]{0,8}/[smhd]", text) is None:
            raise ValueError('expected a whole number from 1 per s, m, h or d, such as "100/s" or "6000/m"')
        return cls(text)

    @property
    def number(self) -> int:
        """How many may come in a period."""
        return int(self[:-2])

    @property
    def period(self) -> int:
        """In nanoseconds."""
        return _PERIODS[self[-1]]


class TokenBuckets:
    """A bucket of `burst` tokens for every name, full at first, that is filled again at `rate`.

    At most `most` of them are kept: one that is full again is forgotten, which changes nothing; beyond
    `most` the one goes from which nothing was taken for longest, and is full when it is next asked for.

    Of a bucket only the moment is kept at which it will be full. That and all times here are in
    nanoseconds multiplied by the rate's number: so everything is a whole number, and no rounding adds up.
    """

    def __init__(self, rate: Rate, burst: int, *, most: int = 100_000) -> None:
        self._speed = rate.number
        self._token = rate.period
        self._burst = burst
        self._most = most
        self._full_at: OrderedDict[Hashable, int] = OrderedDict()  # what was taken from last at the end

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._full_at)

    def wait(self, name: Hashable, now: int, count: int = 1) -> int:
        """How many nanoseconds from `now` until the bucket has so many tokens, or is full; 0 if it is so far."""
        full_at = self._full_at.get(name)
        if full_at is None:
            return 0
        spare = max(self._burst - count, 0) * self._token
        missing = full_at - spare - now * self._speed
        return -(-missing // self._speed) if missing > 0 else 0

    def take(self, name: Hashable, now: int, count: int = 1) -> None:
        """Take tokens when there is nothing to wait for. `now` never goes back.

        Of more than a bucket holds, it owes the rest: nothing can be taken until that has come in too.
        """
        now *= self._speed
        full_at = self._full_at.get(name)
        if full_at is None:
            self._full_at[name] = now + count * self._token
            self._forget(now)
        else:
            self._full_at[name] = max(full_at, now) + count * self._token
            self._full_at.move_to_end(name)

    def _forget(self, now: int) -> None:
        """Two at most for each that is new: that keeps pace, and makes nobody wait for many at once."""
        for _ in range(2):
            name, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= self._most:
                return
            del self._full_at[name]
