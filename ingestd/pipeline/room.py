"""The room for what waits in the daemon: single events by their number, batches and large events by their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from ingestd.api.errors import Unavailable
from ingestd.api.events import Principal, Request
from ingestd.support.addresses import network_of

from .turns import Sender

__all__ = ["NoRoom", "Place", "Room"]

_EVENT = 64  # bytes that the daemon keeps for each event of a waiting batch, besides the body


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
        self.adopt(most, most_buffered)
        self.partitions = 0
        self.singles = 0
        """Single events in progress."""
        self.batches = 0
        """Batches and large events in progress."""
        self.events = 0
        """Their events, as far as they are known."""
        self._bytes: Counter[Hashable] = Counter()
        """Bytes of batches and large events, for each part of the room."""

    def adopt(self, most: int, most_buffered: int) -> None:
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
    """The place of one batch or large event in the room, from its arrival until it is durable."""

    __slots__ = ("_address", "_events", "_parts", "_room", "_size", "sender")

    def __init__(self, room: Room, request: Request) -> None:
        self._room = room
        self._address = network_of(request.peer) if request.peer else None
        self._size = self._events = 0
        self._parts: tuple[Hashable, ...] = ()
        self.sender: Sender = (None, self._address)
        room.batches += 1

    def take(self, size: int, principal: Principal | None = None, *, events: int = 0, partition: int = 0) -> None:
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
        parts = (("key", key), address, kind, (kind, partition))
        self._room.take(size, *parts)
        self._size, self._events, self._parts = size, events, parts
        self._room.events += events

    def leave(self) -> None:
        """Give all back."""
        self._release()
        self._room.batches -= 1

    def _release(self) -> None:
        self._room.release(self._size, *self._parts)
        self._room.events -= self._events
        self._size = self._events = 0
        self._parts = ()
