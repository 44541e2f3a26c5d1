"""Signature checks that take more than a moment: who may cause one, and only one at a time.

Whoever knows the id of a server key can have signatures checked against it. For most bodies a check takes some
microseconds. To decode and hash a body of megabytes takes milliseconds, and so does the canonical form of a large body.
So such checks have a budget, which only failures use up:

- Each client address has a bucket of tokens. A single stranger comes to its end soon.
- Each key has a larger one. Strangers at many addresses share that of the key they try.
- An address where a costly check of a key has succeeded knows the secret. From then on this key and address have a
  bucket of their own, so that strangers elsewhere cannot lock out a backend that signs its bodies in that form.

Success is free, so a backend is not bound to any rate. Without tokens the answer is 429 and not 401: the signature may
be right, and a client that meets 429 sends the event again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from ingestd.api.addresses import network_of
from ingestd.api.errors import Limited, Unavailable

from ..token_buckets import Rate, TokenBuckets

__all__ = ["Caller", "CostlyChecks"]

# A token is for about half a millisecond of work.
_OF_ADDRESS = Rate("16/s")
_OF_KEY = Rate("128/s")
_BURST = 4  # seconds

_MOST_WAITING = 64
_MOST_PROVEN = 10_000


class Caller(NamedTuple):
    """Who has signatures checked: with which key, and from where."""

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
        """Raises `Limited` where too many checks have failed lately: where there is no token left."""
        now = self._clock()
        if caller in self._proven:
            wait = self._callers.wait(caller, now)
        else:
            wait = max(self._callers.wait(caller.network, now), self._keys.wait(caller.key_id, now))
        if wait > 0:
            seconds = -(-wait // 10**9)
            raise Limited(
                "Too many signatures of this key or from this address were wrong lately, so this one was not looked at"
                f" any further. Send the request again after {seconds} s. Up to 256 KiB that are signed as they are"
                " sent are always looked at.",
                retry_after=seconds,
            )

    def failed(self, caller: Caller, cost: int) -> None:
        """Take so many tokens; if there are fewer, the rest is owed."""
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
        """Wait until no other check is at work. Raises `Limited`, and `Unavailable` where too many wait already."""
        self.admit(caller)
        if self._waiting >= _MOST_WAITING:
            raise Unavailable("Too many signatures are being checked. Send it again.")
        self._waiting += 1
        try:
            async with self._turn:
                self.admit(caller)  # others of this caller may have failed meanwhile
                yield
        finally:
            self._waiting -= 1
