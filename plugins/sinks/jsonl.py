"""The `jsonl` sink: appends each record as a line to a file, and rotates it.

A write returns when its lines are on the disk (fsync). The file holds whole lines only. Opening the file cuts off a
torn line that a crash left. A failed write removes its lines again, and its records come again. So after a crash a
record may be there twice, but never be missing.

A full or old file is renamed, and with `gzip` compressed in the background. If another program moves the file away
(logrotate), the sink creates a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkRetry, reason_of
from ingestd.api.events import Record
from ingestd.api.options import Options, PositiveDuration, PositiveSize, Size
from ingestd.api.record_batch import lines_of
from ingestd.api.sink import Sink

from .compressor import Compressor
from .line_file import LineFile
from .own_thread import OwnThread
from .rotated_files import RotatedFiles

__all__ = ["JsonlSink", "register_sinks"]


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("jsonl", JsonlSink)


class JsonlOptions(Options):
    path: Path
    max_size: PositiveSize = Size.parse("100MiB")
    """A file that would grow beyond this is rotated first. Only a single write may be larger."""
    rotate_every: PositiveDuration | None = None
    """The next write rotates a file that is older than this. Without it, age rotates no file."""
    keep: Annotated[int, Meta(ge=1)] | None = None
    """The number of rotated files to keep, the newest ones. Without it, all stay."""
    gzip: bool = False
    """Whether rotated files are compressed."""


class JsonlSink(Sink):
    Options = JsonlOptions

    def __init__(self, name: str, options: JsonlOptions) -> None:
        super().__init__(name, options)
        if options.path.suffix == ".gz":
            raise ConfigError(
                f"sinks.{name}.path: the current file is never compressed; remove .gz, and set gzip = true to compress"
                " rotated files"
            )
        every = options.rotate_every
        rotated = RotatedFiles(options.path, keep=options.keep)
        self._file = LineFile(
            options.path,
            rotated,
            max_size=int(options.max_size),
            rotate_every=None if every is None else every.milliseconds,
            read_again=options.gzip,
        )
        self._compressor = Compressor(rotated, sink=name) if options.gzip else None
        self._thread = OwnThread(f"jsonl-{name}")

    async def open(self) -> None:
        await self._thread.do(self._open)

    async def write(self, batch: Sequence[Record]) -> None:
        try:
            await self._thread.do(self._append, batch)
        except OSError as error:  # a fault of the disk, the file or its folder, never of a record
            raise SinkRetry(reason_of(error)) from error

    async def check(self) -> None:
        await self._thread.do(self._file.check)

    async def close(self) -> None:
        await self._thread.do(self._close)
        await self._thread.close()

    def _open(self) -> None:
        self._file.open()
        if self._compressor is not None:
            self._compressor.start()  # also compresses files that were rotated before

    def _append(self, batch: Sequence[Record]) -> None:
        if self._file.append(lines_of(batch)) and self._compressor is not None:
            self._compressor.wake()

    def _close(self) -> None:
        if self._compressor is not None:
            self._compressor.stop()
        self._file.close()
