"""The `stdout` sink: prints each record as a line on the daemon's standard output, for containers and pipes.

A write returns when its lines are in the pipe, or on the disk where the output is a file. A reader that is slow
or has stopped holds up this sink and nothing else. What the pipe has not taken of a line goes first whatever comes
next, so lines stay whole; one of at most 4096 bytes is a single write, which no other writer can tear.

On a terminal characters that are not visible are escaped: records hold the text of callers, which could steer it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkRetry, reason_of
from ingestd.api.events import Record
from ingestd.api.record_batch import lines_of
from ingestd.api.sink import Sink
from ingestd.api.terminal import json_escaped

__all__ = ["StdoutSink", "register_sinks"]

_STDOUT = 1
_CLOSED = "nobody reads the standard output: its pipe is closed"
_LOOK = 100  # milliseconds after which a write to a full pipe sees that it is to end
_PATIENCE = 1.0  # seconds that closing waits for a write that does not end
_LARGE = 1 << 20


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("stdout", StdoutSink)


class StdoutSink(Sink):
    """`descriptor` may be another one than that of the standard output."""

    _writers: ClassVar[WeakValueDictionary[int, StdoutSink]] = WeakValueDictionary()

    def __init__(self, name: str, options: Any, *, descriptor: int = _STDOUT) -> None:
        super().__init__(name, options)
        if descriptor == _STDOUT and sys.__stdout__ is None:  # then any file of the daemon may have that number
            raise ConfigError(f"sinks.{name}.type: the standard output is closed")
        other = self._writers.get(descriptor)
        if other is not None and other.name != name:
            raise ConfigError(f"sinks.{name}.type: sinks.{other.name} has the standard output for itself")
        self._writers[descriptor] = self
        self._descriptor = descriptor
        self._output = _Output(descriptor)
        self._stopping = threading.Event()
        self._job: asyncio.Future[Exception | None] | None = None
        """A thread that writes, or its result."""

    async def open(self) -> None:
        self._output.check()

    async def write(self, batch: Sequence[Record]) -> None:
        if self._job is not None:  # that of a write that was cancelled may not have ended yet
            await asyncio.wait([self._job])
        lines = lines_of(batch)
        if os.isatty(self._descriptor):
            lines = b"\n".join(map(json_escaped, lines.split(b"\n")))
        self._output.put(lines)
        error = await self._run()
        if isinstance(error, BrokenPipeError):
            raise SinkRetry(_CLOSED) from error
        if isinstance(error, OSError):
            raise SinkRetry(reason_of(error)) from error
        if error is not None:
            raise error
        self._output.forget()

    async def check(self) -> None:
        self._output.check()

    async def close(self) -> None:
        self._stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                if self._job is not None:
                    await asyncio.wait([self._job])
                self._output.forget()
                if self._output.torn:
                    await self._run()

    async def _run(self) -> Exception | None:
        """Write what was put; being cancelled stops it, a little later."""
        job: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._stopping.clear()
        # Not a pool's: Python waits for those at its end, and nobody can end a write that hangs.
        threading.Thread(target=self._write, args=(job,), name=f"stdout-{self.name}", daemon=True).start()
        self._job = job
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._stopping.set()
            raise

    def _write(self, job: asyncio.Future[Exception | None]) -> None:
        result: Exception | None = None
        try:
            self._output.write(self._stopping)
        except Exception as error:  # noqa: BLE001 - whatever it is, the write raises it
            result = error
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            job.get_loop().call_soon_threadsafe(job.set_result, result)


class _Output:
    """Lines that go to a descriptor, and how far they are. `write` blocks; all else is called between writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._given: bytes | None = None
        """The lines put last; put again, they are gone on with."""
        self._data = b""
        self._rest = 0
        """So much at the beginning of the data is the rest of a line begun before."""
        self._written = 0
        self._begun = False

    def put(self, lines: bytes) -> None:
        """What to write next. Of lines whose write was stopped only what is missing is written."""
        if lines != self._given:
            self._start_with(lines)
            self._given = lines

    @property
    def torn(self) -> bool:
        """Whether the end of a line is missing, and nothing else is left to write."""
        return 0 < self._rest == len(self._data)

    def forget(self) -> None:
        """Whatever is put next is new."""
        self._start_with(b"")
        self._given = None

    def _start_with(self, lines: bytes) -> None:
        """A line that was begun is ended first."""
        rest = self._data[self._written : self._rest]
        if self._written > self._rest and self._data[self._written - 1 : self._written] != b"\n":
            rest = self._data[self._written : self._data.index(b"\n", self._written) + 1]
        self._data, self._rest, self._written = rest + lines, len(rest), 0

    def write(self, stopping: threading.Event) -> None:
        """Write what was put, until told to stop. Raises `OSError`; then all of it is written again."""
        try:
            is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if is_file and not self._begun:
                self._end_torn_line()
            self._begun = True
            ready = select.poll()
            ready.register(self._fd, select.POLLOUT)
            while self._written < len(self._data) and not stopping.is_set():
                # The descriptor stays as it is: made non-blocking, it would be so for all who share it. A pipe that
                # is ready takes as much as PIPE_BUF without blocking, and in one piece.
                if ready.poll(_LOOK):
                    piece = self._piece(_LARGE if is_file else select.PIPE_BUF)
                    with suppress(BlockingIOError):  # somebody else has made it so
                        self._written += os.write(self._fd, piece)
            if is_file:
                os.fsync(self._fd)
        except OSError:
            self._given = None  # what a closed pipe had taken, nobody may have read
            raise

    def _end_torn_line(self) -> None:
        """What a daemon that was killed has left of a line in a file stays there, as a line of its own."""
        torn = False
        with suppress(OSError), open(f"/proc/self/fd/{self._fd}", "rb", buffering=0) as file:  # if it may be read
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        if torn:
            os.write(self._fd, b"\n")

    def _piece(self, size: int) -> bytes:
        """Whole lines, as many as fit, or else a part of one."""
        piece = self._data[self._written : self._written + size]
        return piece[: piece.rfind(b"\n") + 1] or piece

    def check(self) -> None:
        """Raise what a write would raise now."""
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError("the standard output cannot be written to")
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        if any(events & select.POLLERR for _, events in ready.poll(0)):
            raise SinkRetry(_CLOSED)
