"""A child process that computes the canonical forms of large documents (`ecmascript`).

The canonical form of 64 KiB takes up to 25 ms of Python code. On a thread of the daemon that code would hold the
interpreter, which the event loop needs. The first document starts the process. It answers one document at a time.

The process is a plain program on one end of a socket. It inherits no other file of the daemon. It ends when its input
ends, so also when the daemon is killed. A worker of `concurrent.futures` would outlive the daemon, because it holds
both ends of its queue. Pipes would take twice as much of the event loop's time, since they hold only 64 KiB.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from typing import NamedTuple

from ingestd.api.errors import Unavailable

from . import ecmascript
from .ecmascript import LENGTH_BYTES

__all__ = ["CanonicalProcess"]

_log = logging.getLogger("ingestd.hmac_auth")

_ANSWER_TIMEOUT = 10.0  # seconds, the start included
_ATTEMPTS = 2
_BUFFER = 512 * 1024  # bytes: the canonical form of 64 KiB is smaller

# The program needs no installed package. Without them (-S) it starts in half of the time.
_COMMAND = (sys.executable, "-I", "-S", ecmascript.__file__)


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class CanonicalProcess:
    def __init__(self) -> None:
        self._running: _Running | None = None
        self._one_at_a_time = asyncio.Lock()

    async def canonical(self, document: bytes) -> bytes | None:
        """The same as `ecmascript.canonical`. Raises `Unavailable` if the process fails twice."""
        async with self._one_at_a_time:
            for _ in range(_ATTEMPTS):
                try:
                    async with asyncio.timeout(_ANSWER_TIMEOUT):
                        return await self._ask(document)
                except (OSError, EOFError) as error:  # OSError: the timeout too
                    _log.warning("the process for canonical forms of signed bodies failed: %r", error)
            raise Unavailable("The signature could not be checked. Send the request again.")

    async def _ask(self, document: bytes) -> bytes | None:
        try:
            if self._running is None:
                self._running = await _start()
            _, reader, writer = self._running
            writer.write(len(document).to_bytes(LENGTH_BYTES, "big") + document)
            length = await reader.readexactly(LENGTH_BYTES)
            return await reader.readexactly(int.from_bytes(length, "big")) or None
        except BaseException:
            await self._kill()  # half of an answer may be in the socket
            raise

    async def close(self) -> None:
        """End the process. The next document starts it again."""
        async with self._one_at_a_time:
            await self._kill()

    async def _kill(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.writer.close()
            running.process.kill()
            await asyncio.to_thread(running.process.wait)


async def _start() -> _Running:
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_BUFFER)
        try:
            return _Running(_spawn(theirs.fileno()), reader, writer)
        except OSError:
            writer.close()
            raise


def _spawn(file: int) -> subprocess.Popen[bytes]:
    """Start the program in a new process group, which Ctrl-C in a terminal does not reach. It takes a millisecond."""
    return subprocess.Popen(_COMMAND, stdin=file, stdout=file, process_group=0)  # noqa: S603 - a file of ingestd
