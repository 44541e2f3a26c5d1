"""Budgets for costly signature checks. One such check runs at a time.

Anyone who knows the id of a server key can make the daemon check signatures against it. Most checks take some
microseconds. Decoding and hashing a body of megabytes takes milliseconds. So does the canonical form of a large body.
Such checks have a budget, and only failures use it up:

- Each client address has a bucket of tokens. One stranger empties it soon.
- Each key has a larger bucket. Strangers at many addresses share the bucket of the key that they try.
- An address knows the secret if a costly check of the key has succeeded there. This key and address then share a
  separate bucket. So strangers elsewhere cannot lock out a backend that signs its bodies in the canonical form.

Success is free, so no rate limits a backend. Without tokens the answer is 429 and not 401, because the signature may be
right. A client that receives 429 sends the event again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from ingestd.api.errors import Limited, Unavailable
from ingestd.support.addresses import network_of

from ..token_buckets import Rate, TokenBuckets

__all__ = ["Caller", "CostlyChecks"]

# A token pays for about half a millisecond of work.
_OF_ADDRESS = Rate("16/s")
_OF_KEY = Rate("128/s")
_BURST = 4  # seconds

_MOST_WAITING = 64
_MOST_PROVEN = 10_000


class Caller(NamedTuple):
    """The sender of a signature: its key and its network."""

    key_id: str
    network: bytes | str

    @classmethod
    def of(cls, key_id: str, peer: str) -> Caller:
        return cls(key_id, network_of(peer))


class CostlyChecks:
    def __init__(self, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._callers = TokenBuckets(_OF_ADDRESS, _BURST * _OF_ADDRESS.number, most=_MOST_PROVEN)
        self._keys = TokenBuckets(_OF_KEY, _BURST * _OF_KEY.number, most=_MOST_PROVEN)
        self._proven: OrderedDict[Caller, None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._waiting = 0

    def admit(self, caller: Caller) -> None:
        """Raises `Limited` if no token is left, because too many checks have failed lately."""
        now = self._clock()
        if caller in self._proven:
            wait = self._callers.wait(caller, now)
        else:
            wait = max(self._callers.wait(caller.network, now), self._keys.wait(caller.key_id, now))
        if wait > 0:
            seconds = -(-wait // 10**9)
            raise Limited(
                "Too many signatures of this key or from this address were wrong lately, so this one was not fully"
                f" checked. Send the request again after {seconds} s. A signature of the bytes as sent is always"
                " checked for bodies of up to 256 KiB.",
                retry_after=seconds,
            )

    def failed(self, caller: Caller, cost: int) -> None:
        """Take `cost` tokens. A bucket with fewer tokens owes the rest."""
        now = self._clock()
        if caller in self._proven:
            self._callers.take(caller, now, cost)
        else:
            self._callers.take(caller.network, now, cost)
            self._keys.take(caller.key_id, now, cost)

    def succeeded(self, caller: Caller) -> None:
        self._proven[caller] = None
        self._proven.move_to_end(caller)
        if len(self._proven) > _MOST_PROVEN:
            self._proven.popitem(last=False)

    @contextlib.asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Wait until no other check runs. Raises `Limited`, or `Unavailable` if too many checks wait already."""
        self.admit(caller)
        if self._waiting >= _MOST_WAITING:
            raise Unavailable("Too many signatures are being checked. Send the request again.")
        self._waiting += 1
        try:
            async with self._turn:
                self.admit(caller)  # other checks of this caller may have failed meanwhile
                yield
        finally:
            self._waiting -= 1
