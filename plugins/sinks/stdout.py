"""The `stdout` sink: prints each record as a line on the daemon's standard output, for containers and pipes.

A write returns when its lines are in the pipe, or on the disk if the output is a file. A slow or stopped reader holds
up this sink and nothing else. The sink completes a line before it writes anything else, so lines stay whole. A line of
at most 4096 bytes is a single write, which no other writer can tear.

On a terminal the sink escapes characters that are not visible, because texts of callers could control the terminal.
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
from ingestd.support.terminal import json_escaped

__all__ = ["StdoutSink", "register_sinks"]

_STDOUT = 1
_CLOSED = "nobody reads the standard output: its pipe is closed"
_LOOK = 100  # milliseconds between two checks whether a write to a full pipe must stop
_WAIT = 1.0  # seconds that `close` waits for a write that does not end
_LARGE = 1 << 20


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("stdout", StdoutSink)


class StdoutSink(Sink):
    """The sink. `descriptor` is the standard output's, except in tests."""

    _writers: ClassVar[WeakValueDictionary[int, StdoutSink]] = WeakValueDictionary()

    def __init__(self, name: str, options: Any, *, descriptor: int = _STDOUT) -> None:
        super().__init__(name, options)
        if descriptor == _STDOUT and sys.__stdout__ is None:  # then another file may have that descriptor
            raise ConfigError(f"sinks.{name}.type: the standard output is closed")
        other = self._writers.get(descriptor)
        if other is not None and other.name != name:
            raise ConfigError(f"sinks.{name}.type: sinks.{other.name} already uses the standard output")
        self._writers[descriptor] = self
        self._descriptor = descriptor
        self._output = _Output(descriptor)
        self._stopping = threading.Event()
        self._job: asyncio.Future[Exception | None] | None = None
        """The result of the thread that writes."""

    async def check(self) -> None:
        self._output.check()

    open = check

    async def write(self, batch: Sequence[Record]) -> None:
        if self._job is not None:  # the thread of a cancelled write may still run
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

    async def close(self) -> None:
        self._stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT):
                if self._job is not None:
                    await asyncio.wait([self._job])
                self._output.forget()
                if self._output.torn:
                    await self._run()

    async def _run(self) -> Exception | None:
        """Write the lines of `put` in a thread. A cancellation stops the thread soon afterwards."""
        job: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._stopping.clear()
        # Not a thread of a pool: Python waits for pools at exit, and a write that hangs cannot be ended.
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
        except Exception as error:  # noqa: BLE001 - `write` raises it in the event loop
            result = error
        with suppress(RuntimeError):  # the event loop has ended, so nothing waits for the result
            job.get_loop().call_soon_threadsafe(job.set_result, result)


class _Output:
    """The lines for a descriptor, and the progress of writing them.

    `write` blocks. All other methods are called between writes.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._given: bytes | None = None
        """The lines of the last `put`. If the same lines come again, writing continues where it stopped."""
        self._data = b""
        self._rest = 0
        """Bytes at the beginning of `_data` that complete an earlier line."""
        self._written = 0
        self._begun = False

    def put(self, lines: bytes) -> None:
        """Set the lines to write next. If their write was stopped before, only the missing part is written."""
        if lines != self._given:
            self._start_with(lines)
            self._given = lines

    @property
    def torn(self) -> bool:
        """Whether only the end of an earlier line is left to write."""
        return 0 < self._rest == len(self._data)

    def forget(self) -> None:
        """Drop the lines, so that the next `put` starts from its beginning."""
        self._start_with(b"")
        self._given = None

    def _start_with(self, lines: bytes) -> None:
        """Set the data to write: the rest of a line that was begun, then the lines."""
        rest = self._data[self._written : self._rest]
        if self._written > self._rest and self._data[self._written - 1 : self._written] != b"\n":
            rest = self._data[self._written : self._data.index(b"\n", self._written) + 1]
        self._data, self._rest, self._written = rest + lines, len(rest), 0

    def write(self, stopping: threading.Event) -> None:
        """Write the data until `stopping` is set. Raises `OSError`; then the next `put` starts from its beginning."""
        try:
            is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if is_file and not self._begun:
                self._end_torn_line()
            self._begun = True
            ready = select.poll()
            ready.register(self._fd, select.POLLOUT)
            while self._written < len(self._data) and not stopping.is_set():
                # The descriptor stays blocking, because other processes share its mode. A pipe that is ready takes
                # PIPE_BUF bytes without blocking, and in one piece.
                if ready.poll(_LOOK):
                    piece = self._piece(_LARGE if is_file else select.PIPE_BUF)
                    with suppress(BlockingIOError):  # another process has made the descriptor non-blocking
                        self._written += os.write(self._fd, piece)
            if is_file:
                os.fsync(self._fd)
        except OSError:
            self._given = None  # perhaps nothing has read the content of a closed pipe
            raise

    def _end_torn_line(self) -> None:
        """End a torn line that a killed daemon left in a file, so that later lines are whole."""
        torn = False
        with suppress(OSError), open(f"/proc/self/fd/{self._fd}", "rb", buffering=0) as file:  # if readable
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        if torn:
            os.write(self._fd, b"\n")

    def _piece(self, size: int) -> bytes:
        """As many whole lines as fit into `size` bytes, or else a part of a line."""
        piece = self._data[self._written : self._written + size]
        return piece[: piece.rfind(b"\n") + 1] or piece

    def check(self) -> None:
        """Raise the error that a write would raise now."""
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError("the standard output cannot be written to")
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        if any(events & select.POLLERR for _, events in ready.poll(0)):
            raise SinkRetry(_CLOSED)
