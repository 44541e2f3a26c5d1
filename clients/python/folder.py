"""The queue on disk: each event is a file. Its name begins with the time, so names sort by age.

A file appears under its name when it is complete, and is removed when ingestd has taken or refused the event. So the
end of a process loses no event. Several processes may share a folder.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

__all__ = ["QueueFolder", "QueueFull"]

_COUNTED_EVERY = 10.0  # seconds
_ABANDONED = 3600 * 10**6  # microseconds after which an unfinished file has no writer


class QueueFull(Exception):
    """As many events wait as may wait. This one is not kept."""


class QueueFolder:
    def __init__(self, path: Path, most: int) -> None:
        """At most about `most` events wait. It creates the folder, which only this user can read."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._most = most
        self._naming = Lock()
        self._stamp = 0
        self._count = 0
        self._counted_at = float("-inf")

    def add(self, event: bytes) -> None:
        """Keeps an event. QueueFull: too many wait. OSError: the disk is full or may not be written."""
        with self._naming:
            if time.monotonic() - self._counted_at > _COUNTED_EVERY:
                self._count = len(self.names())
                self._counted_at = time.monotonic()
            if self._count >= self._most:
                raise QueueFull(f"{self._count} events wait in {self._path}")
            self._count += 1
            self._stamp = max(self._stamp + 1, _now())
            name = f"{self._stamp:016}-{secrets.token_hex(4)}"
        part = self._path / f"{name}.part"
        try:
            part.write_bytes(event)
            part.rename(self._path / f"{name}.json")
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def names(self) -> list[str]:
        """The names of the events that wait, oldest first."""
        found = os.listdir(self._path)
        for name in found:
            if name.endswith(".part") and name < f"{_now() - _ABANDONED:016}":
                (self._path / name).unlink(missing_ok=True)
        return sorted(name for name in found if name.endswith(".json"))

    def has_before(self, stamp: int) -> bool:
        """Whether an event waits that was added before this time, in microseconds since 1970."""
        return any(name < f"{stamp:016}" for name in self.names())

    def newest(self) -> int:
        """A time that is later than each event of this process, in microseconds since 1970."""
        return max(self._stamp, _now()) + 1

    def read(self, name: str) -> bytes | None:
        """The event; None if it is no longer there, or not to be sent yet."""
        with suppress(FileNotFoundError), (self._path / name).open("rb") as file:
            if os.fstat(file.fileno()).st_mtime <= time.time():
                return file.read()
        return None

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)
        self._count -= 1

    def hold(self, name: str, seconds: float) -> None:
        """No process sends the event before that many seconds are over: its file has that time."""
        with suppress(FileNotFoundError):
            os.utime(self._path / name, (time.time() + seconds,) * 2)

    @contextmanager
    def one_sender(self) -> Iterator[bool]:
        """Whether this process may send meanwhile: one of them at a time does."""
        lock = os.open(self._path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not `flock`, which a forked process would keep
            except (BlockingIOError, PermissionError):
                yield False
                return
            yield True
        finally:
            os.close(lock)


def _now() -> int:
    return time.time_ns() // 1000
