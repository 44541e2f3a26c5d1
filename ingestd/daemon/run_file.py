"""The run file of a daemon: `ingestd.json`, with its process, its configuration and the outcome of its reloads.

The file is in the run directory of the daemon. systemd sets `RUNTIME_DIRECTORY` for `RuntimeDirectory=`; there
`ExecReload=` needs the file for the outcome, because systemd 252 has no notify-reload. A daemon without that variable
makes a directory below /run/ingestd, or below /tmp/ingestd-UID. A daemon serves even if its run directory fails.

The daemon holds a lock on `ingestd.lock` beside the file, and the kernel names the process with the lock. So the file
of a killed daemon never counts as a running daemon, even if another process has the same number. The kernel also
translates process numbers between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

__all__ = ["RunFile", "RunState", "find_run_files", "hold_run_file", "runtime_directory"]

log = logging.getLogger("ingestd.reload")

_RUN, _TMP = Path("/run"), Path("/tmp")  # noqa: S108 - a directory in it is used only if it is our own
_STATE, _LOCK = "ingestd.json", "ingestd.lock"
_FLOCK = "hhqqi0q"  # struct flock of fcntl(2): type, whence, start, length, process
_MAX_SIZE = 1 << 16
_LEFT = 60.0
"""The age in seconds of a directory that a killed daemon has left: a starting daemon locks its directory at once."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`begun` and `ended` count reloads.

    `refused` is the reason if the last reload that ended was refused, and `code` the exit code for it.
    """

    pid: int
    config: str = ""
    """The absolute path of the configuration file."""
    generation: int = 1
    begun: int = 0
    ended: int = 0
    refused: str | None = None
    code: int = 0
    remarks: Sequence[str] = ()
    """What an operator should know about the last reload, although it is in force."""


class RunFile:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptors: list[int] = []
        """The lock and the directory, while this process holds the file."""

    # The daemon's side

    def hold(self, state: RunState) -> None:
        """Lock the directory for this daemon and write its state. Raises `OSError`, also if another daemon has it."""
        opened = self._descriptors
        try:
            opened.append(os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            fcntl.lockf(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._replace(state)  # at once: a command must not read the state of a killed daemon as ours
            opened.append(os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            with contextlib.suppress(BlockingIOError):  # systemd-tmpfiles leaves a folder in /tmp alone if it is locked
                fcntl.flock(opened[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            self._close()
            if isinstance(error, BlockingIOError):
                raise BlockingIOError(f"{self.directory} is another daemon's") from None
            raise

    @property
    def held(self) -> bool:
        return bool(self._descriptors)

    def write(self, state: RunState) -> None:
        """Replace the state if the file is held. After a failure, which is logged, the old state remains."""
        try:
            if self.held:
                self._replace(state)
        except OSError as error:
            log.warning("ingestd reload cannot show the outcome, because the run file cannot be written: %s", error)

    def _replace(self, state: RunState) -> None:
        beside = self.directory / f"{_STATE}.new"
        beside.write_bytes(msgspec.json.encode(state) + b"\n")
        beside.replace(self.directory / _STATE)

    def release(self) -> None:
        """Remove the state when the daemon ends, and a directory that it made, and drop the lock."""
        try:
            if self.held and self.directory == runtime_directory():  # systemd removes its directory itself
                (self.directory / _STATE).unlink(missing_ok=True)
            elif self.held:
                self.remove()
        except OSError as error:
            log.warning("the run file cannot be removed: %s", error)
        finally:
            self._close()

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def remove(self) -> None:
        """Remove both files and the directory. Raises `OSError`."""
        for name in (_STATE, f"{_STATE}.new", _LOCK):
            (self.directory / name).unlink(missing_ok=True)
        self.directory.rmdir()

    # The commands' side

    def holder(self) -> int | None:
        """The process of the daemon, 0 if it is in a container that we cannot see into, None without a daemon.

        The daemon of this directory must not call it: closing the file would drop its lock. Raises `OSError`.
        """
        lock = _open(self.directory / _LOCK)
        if lock is None:
            return None
        try:
            # A read lock conflicts with the daemon's lock only. Others cannot open the file for writing.
            asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
        finally:
            os.close(lock)
        return None if kind == fcntl.F_UNLCK else int(holder)

    def read(self) -> RunState | None:
        """The state of the running daemon with its process from `holder`, None without one. Raises `OSError`."""
        holder = self.holder()
        file = None if holder is None else _open(self.directory / _STATE)
        if holder is None or file is None:
            return None
        try:
            state = msgspec.json.decode(os.read(file, _MAX_SIZE), type=RunState)
        except msgspec.DecodeError:
            return None
        finally:
            os.close(file)
        return msgspec.structs.replace(state, pid=holder)


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory that systemd has made for the service, the first one if there are several."""
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else None


def hold_run_file(state: RunState) -> RunFile:
    """Make the run file of this daemon. It is not held if no directory can be used."""
    given, user = runtime_directory(), os.geteuid()
    parents = [_RUN / "ingestd"] if user == 0 else []
    file, reasons = RunFile(given or _TMP), list[str]()
    for parent in [*parents, _TMP / f"ingestd-{user}"] if given is None else [None]:
        try:
            if parent is not None:
                file = RunFile(_make_directory(parent))
            file.hold(state)
        except OSError as error:
            reasons.append(str(error))
        else:
            return file
    level = logging.INFO if given is None else logging.WARNING  # a container may have no writable directory
    log.log(level, "ingestd reload cannot find this daemon, because it has no run directory: %s", "; ".join(reasons))
    return file


def find_run_files() -> Iterator[RunFile]:
    """All run files on this machine, including files that killed daemons have left.

    A service may have chosen any `RuntimeDirectory=`, so the search covers two levels of /run.
    """
    given = runtime_directory()
    found = {} if given is None else {given: None}
    for parent, pattern in ((_RUN, "*/ingestd.lock"), (_RUN, "*/*/ingestd.lock"), (_TMP, "ingestd-*/*/ingestd.lock")):
        found |= dict.fromkeys(path.parent for path in sorted(parent.glob(pattern)))
    yield from map(RunFile, found)


def _make_directory(parent: Path) -> Path:
    """A new directory that other users may read. Raises `OSError`."""
    try:
        parent.mkdir(mode=0o755)
        parent.chmod(0o755)  # despite the umask: other users must see who runs a daemon
    except FileExistsError:
        found = parent.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{parent} is not a directory of this user alone") from None
        _remove_left(parent)
    directory = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
    directory.chmod(0o755)
    return directory


def _remove_left(parent: Path) -> None:
    """Remove the directories of daemons that were killed."""
    for directory in parent.iterdir():
        try:
            found, file = directory.stat(), RunFile(directory)
            is_ours = found.st_uid == os.geteuid() and time.time() - found.st_mtime > _LEFT
            if is_ours and file.holder() is None:
                file.remove()
        except OSError as error:  # another daemon may be removing it too
            log.debug("%s is not removed: %s", directory, error)


def _open(path: Path) -> int | None:
    """Open a regular file for reading, None if there is none. Another user may have put anything at this path."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None
