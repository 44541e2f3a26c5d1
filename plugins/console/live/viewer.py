"""A viewer: reads a stream as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ..disclosure import Disclosure
from .stream import RATE, Stream, StreamEntry

__all__ = ["Viewer"]

_TICK = 0.25  # seconds between two messages
_QUIET = 15.0  # seconds until a comment shows that the connection still works
_AGAIN = 1000  # milliseconds until a browser connects again
_MOST_ROWS = 100  # of a message


class Viewer:
    """Nothing waits for a viewer: it has a place in the stream, and misses the rows that have left the stream."""

    def __init__(self, stream: Stream, disclosure: Disclosure, last_id: str) -> None:
        self._stream = stream
        token, _, number = last_id.partition("-")
        self.continues = token == stream.token and number.isascii() and number.isdigit()
        self._place = min(int(number[:18]), stream.came) if self.continues else 0
        self.since = stream.since
        """The time from which on it sees events, in milliseconds."""
        self._disclosure = disclosure
        self._greeted = False
        self._caught_up = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no message comes any more."""

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def next_message(self) -> bytes | None:
        """The next message, as soon as there is one. None is the end."""
        if not self._greeted:
            self._greeted = True
            return self._greeting()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not await self._has_ended():
            self._stream.take_sample(loop.time())
            entries = self._stream.read(self._place, _MOST_ROWS)
            self._caught_up = len(entries) < _MOST_ROWS
            if entries:
                return self._rows(entries)
            if loop.time() - begun > _QUIET:
                return b": no event\n\n"
        return None

    async def _has_ended(self) -> bool:
        if self._caught_up:
            await asyncio.wait([self.ended], timeout=_TICK)
        return self.ended.done()

    def _rows(self, entries: Sequence[StreamEntry]) -> bytes:
        self._place = entries[-1].number
        rows = b",".join([entry.row for entry in entries])
        return self._message("rows", b'{"came":%d,"rows":[%b]}' % (self._stream.came, rows))

    def _greeting(self) -> bytes:
        told = {
            "continues": self.continues,
            "showData": self._disclosure.level,
            "keys": sorted(self._disclosure.keys),
            "rowsPerSecond": RATE,
        }
        return b"retry: %d\n" % _AGAIN + self._message("hello", msgspec.json.encode(told))

    def _message(self, event: str, data: bytes) -> bytes:
        return b"event: %b\nid: %b-%d\ndata: %b\n\n" % (event.encode(), self._stream.token.encode(), self._place, data)
