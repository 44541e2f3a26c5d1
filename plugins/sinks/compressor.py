"""A thread that compresses rotated files, the oldest first, while others are being written.

A file is compressed under a name of its own, synced and only then renamed. So a `.gz` is always whole, the plain file
goes when the compressed one is on the disk, and what was interrupted is done anew the next time.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import threading
import zlib
from pathlib import Path

from .rotated_files import RotatedFiles

__all__ = ["Compressor"]

_log = logging.getLogger("ingestd.jsonl")

_BLOCK = 1 << 18
_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS  # the format, as zlib has it
_PAUSE = 60.0  # seconds after which what failed is tried again, if no rotation comes first
_SPARE = 32 << 20  # bytes of the disk that are for records alone


class Compressor:
    """Of the rotated files of one sink. `start` and `stop` may come again; both are called by one thread at a time."""

    def __init__(self, files: RotatedFiles, *, sink: str) -> None:
        self._files = files
        self._sink = sink
        self._thread: threading.Thread | None = None
        self._awake = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._stopping.clear()
            # A daemon thread: it may be cut off anywhere, so nobody needs to wait for a disk that hangs.
            self._thread = threading.Thread(target=self._run, name=f"jsonl-{self._sink}-gzip", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """There is a new file."""
        self._awake.set()

    def stop(self) -> None:
        """Returns when nothing is being compressed any more; a file half done is done anew after the next start."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            self._awake.set()
            thread.join()

    def _run(self) -> None:
        told = ""
        while True:
            self._awake.clear()
            if self._stopping.is_set():  # looked at behind `clear`, which may have undone what `stop` set
                return
            problem = self._compress_all()
            if problem and problem != told:
                _log.warning("sink:%s: %s; it stays as it is, and is tried again", self._sink, problem)
            elif told and not problem and not self._stopping.is_set():
                _log.info("sink:%s: all rotated files are compressed", self._sink)
            told = problem
            self._awake.wait(_PAUSE if problem else None)

    def _compress_all(self) -> str:
        """Returns the first problem; it does not keep the others from being compressed."""
        problem = ""
        try:
            self._files.remove_parts()
            for plain in self._files.plain():
                try:
                    self._compress(plain)
                except OSError as error:
                    problem = problem or f"{plain.name} cannot be compressed: {error.strerror}"
                if self._stopping.is_set():
                    break
        except OSError as error:
            problem = f"rotated files cannot be looked at: {error.strerror}"
        return problem

    def _compress(self, plain: Path) -> None:
        # Nobody else's name: another process that is given the same path must not rename our half. And no `events-*`.
        part = plain.with_name(f".{plain.name}.gz.{secrets.token_hex(4)}.part")
        try:
            if self._write(plain, part):
                self._files.replace(plain, part)
        except FileNotFoundError:
            if plain.exists():
                raise
            # It was removed before it was begun.
        finally:
            part.unlink(missing_ok=True)

    def _write(self, plain: Path, part: Path) -> bool:
        """Returns whether it came to the end; then the compressed file is on the disk."""
        with plain.open("rb", buffering=0) as source:
            facts = os.fstat(source.fileno())
            compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            with part.open("xb") as file:
                os.fchmod(file.fileno(), stat.S_IMODE(facts.st_mode))
                while block := source.read(_BLOCK):
                    if self._stopping.is_set() or not os.fstat(source.fileno()).st_nlink:
                        return False  # in the second case it was removed, since there are too many
                    _spare_room(file.fileno())
                    file.write(compress.compress(block))
                file.write(compress.flush())
                file.flush()
                os.utime(file.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
                os.fsync(file.fileno())
        return True


def _spare_room(fd: int) -> None:
    """Records come first: without room for them nothing is compressed, though it would make room."""
    disk = os.fstatvfs(fd)
    if disk.f_bavail * disk.f_frsize < _SPARE:
        raise OSError(errno.ENOSPC, f"less than {_SPARE >> 20} MiB of the disk are free")
