"""Token buckets: many buckets with one rate, in bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

__all__ = ["Rate", "TokenBuckets"]

_PERIODS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


class Rate(str):
    """A number in a second, minute, hour or day, written as `100/s`, `6000/m`, `10000/h`, `50000/d`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> Rate:
        if not isinstance(text, str) or re.fullmatch(r"[1-9][0-9]{0,8}/[smhd]", text) is None:
            raise ValueError('expected a whole number from 1 per s, m, h or d, such as "100/s" or "6000/m"')
        return cls(text)

    @property
    def number(self) -> int:
        """The number allowed in a period."""
        return int(self[:-2])

    @property
    def period(self) -> int:
        """The period in nanoseconds."""
        return _PERIODS[self[-1]]


class TokenBuckets:
    """A bucket of `burst` tokens for every name. It is full at first and refills at `rate`.

    At most `most` buckets are kept. A full bucket is forgotten, which changes nothing. Beyond `most`, the bucket that
    was used least recently is forgotten too. Its name then has a full bucket again.

    A bucket is stored as the moment at which it will be full. Stored times are nanoseconds multiplied by the rate's
    number. So all of them are whole numbers, and no rounding errors add up.
    """

    def __init__(self, rate: Rate, burst: int, *, most: int = 100_000) -> None:
        self._speed = rate.number
        self._token = rate.period
        self._burst = burst
        self._most = most
        self._full_at: OrderedDict[Hashable, int] = OrderedDict()  # the bucket used last is at the end

    def __len__(self) -> int:
        """The number of buckets that are kept."""
        return len(self._full_at)

    def wait(self, name: Hashable, now: int, count: int = 1) -> int:
        """Nanoseconds from `now` until the bucket has `count` tokens or is full; 0 if it already is."""
        full_at = self._full_at.get(name)
        if full_at is None:
            return 0
        spare = max(self._burst - count, 0) * self._token
        missing = full_at - spare - now * self._speed
        return -(-missing // self._speed) if missing > 0 else 0

    def take(self, name: Hashable, now: int, count: int = 1) -> None:
        """Take tokens after `wait` has returned 0. `now` never goes back.

        A bucket with too few tokens owes the rest. It gives no token until it has refilled that debt too.
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
        """Forget at most two buckets for each new one. That keeps pace, and no call waits for a long clean-up."""
        for _ in range(2):
            name, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= self._most:
                return
            del self._full_at[name]
