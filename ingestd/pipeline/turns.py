"""A limit on the work in progress. Work beyond it waits for its turn, which senders get one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["Sender", "Turns"]

Sender = tuple[Hashable, Hashable]
"""The key and the address of a sender. None stands for an unknown key, and for an address of many callers."""

_Waiter = tuple[int, "asyncio.Future[None]"]


class Turns:
    """`most` returns the limit. Work larger than the limit has its turn when nothing else is in progress.

    Keys take turns, and within a key its addresses do. The work of one sender is done in order of arrival.

    Turns `beside` others share their limit. They are for work that may get stuck without the others, such as that of
    another partition. So each of them may have one piece of work in progress even if the others have used the limit up.
    """

    __slots__ = ("_line", "_whole", "in_hand")

    def __init__(self, most: Callable[[], int], beside: Turns | None = None) -> None:
        self.in_hand = 0
        self._line: dict[Hashable, dict[Hashable, deque[_Waiter]]] = {}
        """Waiting work by key and address. The first key and its first address have waited longest for a turn."""
        self._whole: _Whole = _Whole(most) if beside is None else beside._whole

    def begin_at_once(self, size: int) -> bool:
        """Begin a turn if it is possible now. Returns whether it has begun; if not, await `begin`."""
        whole = self._whole  # not by other methods, because each event does this
        if self._line or (self.in_hand and whole.in_hand + size > whole.most()):
            return False
        self.in_hand += size
        whole.in_hand += size
        return True

    async def begin(self, size: int, sender: Sender = (None, None)) -> None:
        """Wait for a turn, which the caller must `end`."""
        if self.begin_at_once(size):
            return
        future = asyncio.get_running_loop().create_future()
        key, address = sender
        self._line.setdefault(key, {}).setdefault(address, deque()).append((size, future))
        self._whole.waiting[self] = None
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # its turn had just come
                self.end(size)
            raise

    def end(self, size: int) -> None:
        whole = self._whole
        self.in_hand -= size
        whole.in_hand -= size
        if whole.waiting:
            whole.begin_waiting()

    def begin_next(self) -> bool:
        """Begin the next work that waits, if it is possible now."""
        while self._line:
            size, future = next(iter(next(iter(self._line.values())).values()))[0]
            if future.done():  # its task was cancelled
                self._take_next()
                continue
            if self.in_hand and self._whole.in_hand + size > self._whole.most():
                return False
            self._take_next()
            self.in_hand += size
            self._whole.in_hand += size
            future.set_result(None)
            return True
        return False

    def _take_next(self) -> None:
        """Remove the next work from the line. Its key goes to the end, and so does its address within the key."""
        key = next(iter(self._line))
        addresses = self._line.pop(key)
        address = next(iter(addresses))
        queue = addresses.pop(address)
        queue.popleft()
        if queue:
            addresses[address] = queue
        if addresses:
            self._line[key] = addresses

    @property
    def is_waiting(self) -> bool:
        return bool(self._line)


class _Whole:
    """The limit that some `Turns` share."""

    __slots__ = ("in_hand", "most", "waiting")

    def __init__(self, most: Callable[[], int]) -> None:
        self.in_hand = 0
        self.most = most
        self.waiting: dict[Turns, None] = {}
        """The turns with waiting work. The first one has waited longest since it last began any."""

    def begin_waiting(self) -> None:
        """Begin waiting work, one piece of each of the turns at a time."""
        has_begun = True
        while has_begun:
            has_begun = False
            for turns in [*self.waiting]:
                if turns.begin_next():
                    has_begun = True
                    del self.waiting[turns]
                    self.waiting[turns] = None
                if not turns.is_waiting:
                    del self.waiting[turns]
