"""The room for work that waits in the daemon, and the turns in which its senders get it.

Single events are counted by their number, batches and large events by their bytes. Each partition has a `Backpressure`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial

from ingestd.api.errors import Unavailable
from ingestd.api.events import Principal, Request
from ingestd.support.addresses import network_of

from .demand import Demand, Steps

__all__ = ["SMALL", "Backpressure", "NoRoom", "Place", "Room", "Sender", "Turns", "is_long"]

SMALL = 8 << 10
"""Bytes of a body that takes no longer than a usual event."""

_EVENT = 64  # bytes that the daemon keeps for each event of a waiting batch, besides the body

_FULL_RETRY = 10  # seconds: a full journal does not empty in one second
_MOST_BUFFERED = 24 << 20  # bytes
_PARSED = 1 << 20  # bytes of single events that are parsed and wait for the store; there may be thousands
_LARGE_RECORDS = 8 << 20  # bytes

Sender = tuple[Hashable, Hashable]
"""The key and the address of a sender. None stands for an unknown key, and for an address of many callers."""

_Waiter = tuple[int, "asyncio.Future[None]"]


def is_long(request: Request) -> bool:
    """Whether the body takes more than a moment to decode and parse, as far as one can tell before."""
    return request.size > SMALL or request.headers.get("Content-Encoding") is not None


class Turns:
    """`most` returns the limit. Work larger than the limit has its turn when nothing else is in progress.

    Keys take turns, and within a key its addresses do. The work of one sender is done in order of arrival.

    Turns `beside` others share their limit. They are for work that may get stuck without the others, such as that of
    another partition. So each of them may have one piece of work in progress even if the others have used the limit up.
    """

    __slots__ = ("_first", "_line", "_most", "_total", "_waiting", "in_hand")

    def __init__(self, most: Callable[[], int], beside: Turns | None = None) -> None:
        self.in_hand = 0
        self._line: dict[Hashable, dict[Hashable, deque[_Waiter]]] = {}
        """Waiting work by key and address. The first key and its first address have waited longest for a turn."""
        self._first: Turns = self if beside is None else beside._first
        """The limit of all turns beside each other is the limit of the first, which has the following members."""
        self._most = most
        self._total = 0
        self._waiting: dict[Turns, None] = {}
        """The turns with waiting work. The first one has waited longest since it last began any."""

    def begin_at_once(self, size: int) -> bool:
        """Begin a turn if it is possible now. Returns whether it has begun; if not, await `begin_turn`."""
        first = self._first  # not by other methods, because each event does this
        if self._line or (self.in_hand and first._total + size > first._most()):
            return False
        self.in_hand += size
        first._total += size
        return True

    async def begin_turn(self, size: int, sender: Sender = (None, None)) -> None:
        """Wait for a turn, which the caller must `end`."""
        if self.begin_at_once(size):
            return
        future = asyncio.get_running_loop().create_future()
        key, address = sender
        self._line.setdefault(key, {}).setdefault(address, deque()).append((size, future))
        self._first._waiting[self] = None
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # its turn had just come
                self.end(size)
            raise

    def end(self, size: int) -> None:
        first = self._first
        self.in_hand -= size
        first._total -= size
        begun = bool(first._waiting)
        while begun:  # one piece of each of the turns at a time
            begun = False
            for turns in [*first._waiting]:
                begun = turns._begin_next() or begun

    def _begin_next(self) -> bool:
        """Begin the next work that waits, if it is possible now. These turns go behind the others then."""
        first = self._first
        while self._line:
            key, addresses = next(iter(self._line.items()))
            address, queue = next(iter(addresses.items()))
            size, future = queue[0]
            is_there = not future.done()  # else its task was cancelled
            if is_there and self.in_hand and first._total + size > first._most():
                return False
            # The key goes to the end of the line, and so does the address within the key.
            queue.popleft()
            del self._line[key], addresses[address]
            if queue:
                addresses[address] = queue
            if addresses:
                self._line[key] = addresses
            if is_there:
                self.in_hand += size
                first._total += size
                future.set_result(None)
            del first._waiting[self]
            if self._line:
                first._waiting[self] = None
            if is_there:
                return True
        return False


class NoRoom(Unavailable):
    """The bound of the room for batches that is reached: `key`, `address` or `all`."""

    def __init__(self, by: str, detail: str) -> None:
        super().__init__(f"{detail} Send the request again.")
        self.by = by


class Room:
    """The room of all partitions together.

    Batches and large events with public keys have seven sixteenths of the bytes that may be buffered, and signed ones
    have as much. A key with nothing in the room finds a sixth more. So requests of usual size can always arrive. A key
    may fill three eighths of these bytes, and an address five sixteenths with public keys. One batch alone may be
    larger than these two.
    """

    def __init__(self, most: int, most_buffered: int) -> None:
        self.apply_options(most, most_buffered)
        self.partitions = 0
        self.singles = 0
        """Single events in progress."""
        self.batches = 0
        """Batches and large events in progress."""
        self.events = 0
        """Their events, as far as they are known."""
        self._bytes: Counter[Hashable] = Counter()
        """Bytes of batches and large events, for each part of the room."""

    def apply_options(self, most: int, most_buffered: int) -> None:
        """Set the most single events, and the most bytes of unanswered requests."""
        self.most = most
        self.most_signed = most + most // 4 + 1
        """Single events for which a signed one still finds room, which public ones cannot take."""
        self._most_of_kind = most_buffered * 7 // 16
        self._more_for_newcomers = most_buffered // 6
        self._most_of_key = most_buffered * 3 // 8
        self._most_of_address = most_buffered * 5 // 16

    def take(self, size: int, key: Hashable, address: Hashable, kind: Hashable, partition: Hashable) -> None:
        """Count so many bytes. Raises `NoRoom`."""
        held, most = self._bytes, self._most_of_kind
        if not held[key]:
            most += self._more_for_newcomers
        if held[key] and held[key] + size > self._most_of_key:
            raise NoRoom("key", "Too many batches of this key are waiting.")
        if address is not None and held[address] and held[address] + size > self._most_of_address:
            raise NoRoom("address", "Too many batches from this address are waiting.")
        # Each partition may take its fair part even if the others have used more than theirs.
        if held[kind] + size > most and held[partition] and held[partition] + size > most // self.partitions:
            raise NoRoom("all", "Too many batches are waiting.")
        for part in key, address, kind, partition:
            held[part] += size

    def release(self, size: int, *parts: Hashable) -> None:
        for part in parts:
            self._bytes[part] -= size
            if not self._bytes[part]:
                del self._bytes[part]


class Place:
    """The place of one batch or large event in the room, from its arrival until it is durable. A context manager."""

    __slots__ = ("_address", "_backpressure", "_events", "_index_of", "_parts", "_request", "_room", "_size", "sender")

    def __init__(
        self,
        backpressure: Backpressure,
        request: Request,
        index_of: Callable[[Principal | None], int] = lambda principal: 0,
    ) -> None:
        """`index_of` returns the index of a sender's partition. `backpressure` is that of any partition."""
        self._backpressure = backpressure
        self._room = backpressure.room
        self._request = request
        self._index_of = index_of
        self._address = network_of(request.peer) if request.peer else None
        self._size = self._events = 0
        self._parts: tuple[Hashable, ...] = ()
        self.sender: Sender = (None, self._address)
        self._room.batches += 1

    def take(self, size: int, principal: Principal | None = None, *, events: int = 0) -> None:
        """Take so many bytes of the room, instead of the bytes that it has now. Raises `NoRoom`; then it has none.

        `principal` is None as long as the sender is unknown. `events` is the number of events, once it is known.
        """
        self._release()
        key = None if principal is None else (principal.tenant, principal.key_id)
        is_signed = principal is not None and principal.signed
        self.sender = (key, self._address)
        size += events * _EVENT
        address = None if is_signed or self._address is None else ("address", self._address)
        kind = "signed" if is_signed else "public"
        parts = (("key", key), address, kind, (kind, self._index_of(principal)))
        self._room.take(size, *parts)
        self._size, self._events, self._parts = size, events, parts
        self._room.events += events

    @contextlib.asynccontextmanager
    async def reading(self, principal: Principal | None = None) -> AsyncIterator[Steps]:
        """Wait until the body may be decoded and split. Raises `NoRoom`."""
        self.take(self._request.size, principal)
        if not is_long(self._request):
            yield Steps()
            return
        with await self._backpressure.begin_piece(self.sender) as steps:
            yield steps

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give all back."""
        self._release()
        self._room.batches -= 1

    def _release(self) -> None:
        self._room.release(self._size, *self._parts)
        self._room.events -= self._events
        self._size = self._events = 0
        self._parts = ()


class Backpressure:
    """Limits the events in progress of one partition, of all generations of the configuration together.

    All partitions of a daemon share its limits: each further one is made `beside` the first. But a partition whose
    store hangs must not take the room of the others. So each may have its fair part of a limit, even if the others have
    used the limit up. In each kind of turns, that is one piece of work.
    """

    def __init__(
        self,
        most: int = 0,
        most_buffered: int = _MOST_BUFFERED,
        *,
        demand: Demand | None = None,
        beside: Backpressure | None = None,
    ) -> None:
        """`most` and `most_buffered` are those of `Room`."""
        self._singles = 0
        self._refusing: str | None = None
        """The reason why no more events of the partition are stored; None: they are stored."""
        self.room: Room = Room(most, most_buffered) if beside is None else beside.room
        self.room.partitions += 1
        self.demand: Demand = (demand or Demand()) if beside is None else beside.demand
        self._batches: Turns = Turns(self.demand.most_of_batches, None if beside is None else beside._batches)
        self._pieces: Turns = Turns(self.demand.most_pieces) if beside is None else beside._pieces
        """Pieces of long work, of all partitions, that may use the event loop now."""
        self.parsing: Turns = Turns(lambda: _PARSED, None if beside is None else beside.parsing)
        """Bytes of single events from their parsing until their record."""
        self.large_records: Turns = Turns(lambda: _LARGE_RECORDS, None if beside is None else beside.large_records)
        """Bytes of large records until they are durable. A record may be four times as long as its request."""

    @property
    def waiting(self) -> int:
        """The number of events in progress, of all partitions."""
        return self.room.singles + self.room.events

    def refuse(self, reason: str | None) -> None:
        """Store no more events of the partition, and give callers this reason; None: store events again."""
        self._refusing = reason

    def check(self) -> None:
        """Raise `Unavailable` while no more events of the partition are stored."""
        if self._refusing is not None:
            raise Unavailable(self._refusing, retry_after=_FULL_RETRY)

    def acquire(self, *, signed: bool = False) -> None:
        """Take room for a single event, until `release`. Raises `Unavailable` if there is none, and as `check` does."""
        if self._refusing is not None:
            self.check()
        room = self.room
        most = room.most_signed if signed else room.most
        if room.singles >= most and self._singles and self._singles >= most // room.partitions:
            raise Unavailable("Too many events are waiting to be stored. Send the request again.")
        self._singles += 1
        room.singles += 1

    def release(self) -> None:
        self._singles -= 1
        self.room.singles -= 1

    @contextlib.asynccontextmanager
    async def turn(self, weight: int, sender: Sender) -> AsyncIterator[None]:
        """Wait until so many events of a batch may be in progress.

        Many batches at once would not end sooner. Each is thousands of objects: together they would push each other out
        of the processor's cache, and the garbage collector would scan them again and again.
        """
        await self._batches.begin_turn(weight, sender)
        try:
            yield
        finally:
            self._batches.end(weight)

    async def begin_piece(self, sender: Sender) -> Steps:
        """Wait until a piece of long work may begin. The caller must `end` its steps, and await no store before that.

        Beside single events there is one piece at a time.
        """
        await self._pieces.begin_turn(1, sender)
        return Steps(self.demand, partial(self._pieces.end, 1))
