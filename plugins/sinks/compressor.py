"""A thread that compresses rotated files, the oldest first, while the sink writes the current file.

The compressed file has a temporary name until it is complete and synced. So a `.gz` is always whole. The plain file is
deleted when the compressed one is on the disk. An interrupted compression starts again the next time.
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
_GZIP = 16 + zlib.MAX_WBITS  # zlib's number for the gzip format
_PAUSE = 60.0  # seconds until the next attempt after a failure, if no rotation comes first
_SPARE = 32 << 20  # bytes of the disk that are reserved for records


class Compressor:
    """Compresses the rotated files of one sink. `start` may follow `stop`; one thread at a time calls them."""

    def __init__(self, files: RotatedFiles, *, sink: str) -> None:
        self._files = files
        self._sink = sink
        self._thread: threading.Thread | None = None
        self._awake = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._stopping.clear()
            # A daemon thread, so that no exit waits for a disk that hangs. It may be cut off anywhere.
            self._thread = threading.Thread(target=self._run, name=f"jsonl-{self._sink}-gzip", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Tell the thread of a new rotated file."""
        self._awake.set()

    def stop(self) -> None:
        """Stop the thread and wait for its end. The next start repeats an interrupted compression."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            self._awake.set()
            thread.join()

    def _run(self) -> None:
        told = ""
        while not self._stopping.is_set():  # checked after `clear`, which may have cleared the wake-up of `stop`
            problem = self._compress_all()
            if problem and problem != told:
                _log.warning("sink:%s: %s; it stays uncompressed, and the sink will try again", self._sink, problem)
            elif told and not problem and not self._stopping.is_set():
                _log.info("sink:%s: all rotated files are compressed", self._sink)
            told = problem
            self._awake.wait(_PAUSE if problem else None)
            self._awake.clear()

    def _compress_all(self) -> str:
        """Compress all plain files. Returns the first problem, or an empty text. A problem does not stop the others."""
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
            problem = f"rotated files cannot be inspected: {error.strerror}"
        return problem

    def _compress(self, plain: Path) -> None:
        # A random name, so that another process with the same path never renames this incomplete file. It does not
        # match `events-*`.
        part = plain.with_name(f".{plain.name}.gz.{secrets.token_hex(4)}.part")
        try:
            if self._write(plain, part):
                self._files.replace(plain, part)
        except FileNotFoundError:
            if plain.exists():
                raise
            # Rotation removed the file before its compression began.
        finally:
            part.unlink(missing_ok=True)

    def _write(self, plain: Path, part: Path) -> bool:
        """Returns whether the compressed file is complete and on the disk."""
        with plain.open("rb", buffering=0) as source:
            facts = os.fstat(source.fileno())
            compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            with open(part, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                os.fchmod(file.fileno(), stat.S_IMODE(facts.st_mode))
                while block := source.read(_BLOCK):
                    if self._stopping.is_set() or not os.fstat(source.fileno()).st_nlink:
                        return False  # stopping, or rotation removed the file because of `keep`
                    _spare_room(file.fileno())
                    file.write(compress.compress(block))
                file.write(compress.flush())
                file.flush()
                os.utime(file.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
                os.fsync(file.fileno())
        return True


def _spare_room(fd: int) -> None:
    """Raises `OSError` if the disk is nearly full. Records need that space, although compression would free some."""
    disk = os.fstatvfs(fd)
    if disk.f_bavail * disk.f_frsize < _SPARE:
        raise OSError(errno.ENOSPC, f"less than {_SPARE >> 20} MiB of the disk are free")
