"""A process beside the daemon that finds the canonical forms of large documents (`ecmascript`).

The canonical form of 64 KiB takes up to 25 ms of Python code. On a thread of the daemon that code would hold the
interpreter, which the event loop needs. The process is started for the first document and answers one at a time.

It is a plain program with two pipes. It has no other file of the daemon, and it ends when its input does, so also when
the daemon is killed. A worker of `concurrent.futures` would outlive the daemon: it holds both ends of its own queue.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process

from ingestd.errors import Unavailable

from . import ecmascript
from .ecmascript import LENGTH_BYTES

__all__ = ["CanonicalProcess"]

_log = logging.getLogger("ingestd.hmac_auth")

_ANSWER_TIMEOUT = 10.0  # seconds, the start included
_ATTEMPTS = 2
_BUFFER = 512 * 1024  # bytes: the canonical form of 64 KiB has less

# It needs no installed package, and starts in half of the time without them.
_COMMAND = (sys.executable, "-I", "-S", ecmascript.__file__)


class CanonicalProcess:
    def __init__(self) -> None:
        self._process: Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def canonical(self, document: bytes) -> bytes | None:
        """As `ecmascript.canonical`. Raises `Unavailable` where the process fails twice."""
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
            if self._process is None:
                self._process = await _start()
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(len(document).to_bytes(LENGTH_BYTES, "big") + document)
            length = await process.stdout.readexactly(LENGTH_BYTES)
            return await process.stdout.readexactly(int.from_bytes(length, "big")) or None
        except BaseException:
            await self._kill()  # half of an answer may be in its pipe
            raise

    async def close(self) -> None:
        """End the process. It is started again for the next document."""
        async with self._one_at_a_time:
            await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _start() -> Process:
    """In a process group of its own, which Ctrl-C in a terminal does not reach."""
    return await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=PIPE, stdout=PIPE, limit=_BUFFER, process_group=0
    )  # fmt: skip
