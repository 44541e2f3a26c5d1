"""The queue on disk: each event is a file. Its name begins with the time, so names sort by age.

A file appears under its name when it is complete, and is removed when ingestd has taken or refused the event. So the
end of a process loses no event. Several processes may share a folder.
"""

from __future__ import annotations

import fcntl
import heapq
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

__all__ = ["QueueFolder", "QueueFull"]

_log = logging.getLogger("ingestd.client")
_COUNTED_EVERY = 10.0  # seconds
_COUNTED_FOR = 0.01  # the most of the time that counting takes
_LISTED = 20_000  # names: a queue may be much longer
_HELD = 60.0  # seconds
_ABANDONED = 3600 * 10**6  # microseconds after which an unfinished file has no writer


class QueueFull(Exception):
    """As many events wait as may wait. This one is not kept."""


class QueueFolder:
    def __init__(self, path: Path, most: int) -> None:
        """At most about `most` events wait. It creates the folder, which only this user can read."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # `add` tells of a folder that cannot be written
            (path / "lock").touch(0o600)  # now, because a full disk could take no lock, and would stay full
        self._path = path
        self._unreadable: set[str] = set()
        self._most = most
        self._naming = Lock()
        self._stamp = 0
        self._count = 0
        self._count_until = float("-inf")

    def add(self, event: bytes) -> None:
        """Keeps an event. QueueFull: too many wait. OSError: the disk is full or may not be written."""
        with self._naming:
            if (begun := time.monotonic()) > self._count_until:
                self._count = sum(1 for _ in self._all())
                end = time.monotonic()
                self._count_until = end + max(_COUNTED_EVERY, (end - begun) / _COUNTED_FOR)
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

    def _all(self) -> Iterator[str]:
        with os.scandir(self._path) as found:
            for entry in found:
                if entry.name.endswith(".json"):
                    yield entry.name
                elif entry.name.endswith(".part") and entry.name < f"{_now() - _ABANDONED:016}":
                    (self._path / entry.name).unlink(missing_ok=True)

    def pages(self) -> Iterator[list[str]]:
        """The names of the events that wait, oldest first, not all at once."""
        last, full = "", True
        while full:
            names = heapq.nsmallest(_LISTED, (name for name in self._all() if name > last))
            full = len(names) == _LISTED
            yield names
            last = names[-1] if full else ""

    def newest(self) -> str:
        """The name of the newest event; empty if none waits."""
        return max(self._all(), default="")

    def has_until(self, newest: str) -> bool:
        """Whether this event or one with a smaller name waits."""
        return any(name <= newest for name in self._all())

    def read(self, name: str) -> bytes | None:
        """The event; None if it cannot be read, is no longer there, or is not to be sent yet."""
        try:
            with (self._path / name).open("rb") as file:
                # A file that is held for longer was written while the clock was wrong.
                if not 0 < os.fstat(file.fileno()).st_mtime - time.time() <= _HELD:
                    return file.read()
        except FileNotFoundError:
            pass
        except OSError as error:
            if name not in self._unreadable:
                self._unreadable.add(name)
                _log.error("an event cannot be read and stays in the queue: %s", error)
        return None

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)
        self._count -= 1

    def hold(self, name: str) -> None:
        """No process sends the event for a minute: its file has that time."""
        with suppress(FileNotFoundError):
            os.utime(self._path / name, (time.time() + _HELD,) * 2)

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
