"""Reads on for a moment from finished connections, so that their clients can read the last answer.

If the daemon closed a connection while more is arriving, the client's system would discard the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque

__all__ = ["Lingering"]

_SECONDS = 2.0
_TICK = 0.02  # seconds between two looks: reading at each arrival would take two to four times as long
_MOST = 256  # connections
_MOST_OF_ONE = 6 << 20  # bytes that are discarded of a connection, in about a millisecond
_MOST_OF_LOOK = 4 << 20  # bytes that are discarded in a turn of the event loop
_PIECE = 1 << 18  # bytes

_buffer = bytearray(_PIECE)
"""Only for its size, in most cases: Linux discards TCP's bytes without a copy (MSG_TRUNC, tcp(7))."""


class Lingering:
    """Finished connections whose clients may still be sending, the longest unread first."""

    def __init__(self) -> None:
        self._finished: deque[_Finished] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._finished)

    def add(self, sock: socket.socket) -> None:
        """Read on from a connection. The caller closes `sock` itself."""
        try:
            copy = sock.dup()
        except OSError:  # no descriptors are left, and an answer may be lost
            return
        copy.setblocking(False)
        with contextlib.suppress(OSError):  # the client has disconnected, and the first read finds that out
            copy.shutdown(socket.SHUT_WR)
        loop = asyncio.get_running_loop()
        finished = _Finished(copy, loop.time() + _SECONDS)
        finished.discard(_MOST_OF_LOOK)
        if finished.over or len(self._finished) >= _MOST:
            copy.close()
            return
        self._finished.append(finished)
        if self._timer is None:
            self._timer = loop.call_later(_TICK, self._discard_all)

    def close(self) -> None:
        """Close all connections."""
        for finished in self._finished:
            finished.socket.close()
        self._finished.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _discard_all(self) -> None:
        """Discard what has arrived, and close connections whose time or bytes are over."""
        loop = asyncio.get_running_loop()
        now, room = loop.time(), _MOST_OF_LOOK
        for _ in range(len(self._finished)):
            if room <= 0:
                break  # the next look begins with the others
            finished = self._finished.popleft()
            room -= finished.discard(room)
            if finished.over or now > finished.end:
                finished.socket.close()
            else:
                self._finished.append(finished)
        self._timer = loop.call_later(_TICK, self._discard_all) if self._finished else None


class _Finished:
    def __init__(self, sock: socket.socket, end: float) -> None:
        self.socket = sock
        self.end = end
        """The loop's time at which the connection closes."""
        self.over = False
        """Whether the client has closed the connection or sent too much."""
        self._left = _MOST_OF_ONE

    def discard(self, most: int) -> int:
        """Discard the bytes that have arrived, or about `most` of them. Returns their number."""
        discarded = 0
        while discarded < most and not self.over:
            try:
                count = self.socket.recv_into(_buffer, _PIECE, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError:
                count = 0
            discarded += count
            self._left -= count
            self.over = not count or self._left < 0
        return discarded
