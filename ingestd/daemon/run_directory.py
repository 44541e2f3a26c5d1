"""Run directories: a daemon puts its run file there, and commands find the daemons of this machine by them.

systemd sets `RUNTIME_DIRECTORY` for `RuntimeDirectory=`. A daemon without that variable makes a directory below
/run/ingestd, or below /tmp/ingestd-UID if it may not write to /run. A daemon serves even if its run directory fails.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .run_file import RunFile, RunState

__all__ = ["find_run_files", "hold_run_file", "release_run_file", "runtime_directory", "write_run_file"]

log = logging.getLogger("ingestd.reload")

_RUN, _TMP = Path("/run"), Path("/tmp")  # noqa: S108 - a directory in it is used only if it is our own
_LEFT = 60.0
"""The age in seconds of a directory that a killed daemon has left: a starting daemon locks its directory at once."""


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory that systemd has made for the service, the first one if there are several."""
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else None


def hold_run_file(state: RunState) -> RunFile | None:
    """Make the run file of this daemon, None if no directory can be used."""
    given = runtime_directory()
    reasons: list[str] = []
    for parent in [None] if given is not None else _parents():
        try:
            file = RunFile(given or _make_directory(parent or _TMP))
            file.hold(state)
        except OSError as error:
            reasons.append(str(error))
        else:
            return file
    level = logging.INFO if given is None else logging.WARNING  # a container may have no writable directory
    log.log(level, "ingestd reload cannot find this daemon, because it has no run directory: %s", "; ".join(reasons))
    return None


def write_run_file(file: RunFile | None, state: RunState) -> None:
    try:
        if file is not None:
            file.write(state)
    except OSError as error:
        log.warning("ingestd reload cannot show the outcome, because the run file cannot be written: %s", error)


def release_run_file(file: RunFile | None) -> None:
    """Remove the run file when the daemon ends, and a directory that the daemon made. systemd removes its own."""
    try:
        if file is not None:
            if file.directory != runtime_directory():
                file.remove()
            file.release()
    except OSError as error:
        log.warning("the run file cannot be removed: %s", error)


def find_run_files() -> Iterator[RunFile]:
    """All run files on this machine, including files that killed daemons have left.

    A service may have chosen any `RuntimeDirectory=`, so the search covers two levels of /run.
    """
    given = runtime_directory()
    found = {} if given is None else {given: None}
    for parent, pattern in ((_RUN, "*/ingestd.lock"), (_RUN, "*/*/ingestd.lock"), (_TMP, "ingestd-*/*/ingestd.lock")):
        found |= dict.fromkeys(path.parent for path in sorted(parent.glob(pattern)))
    yield from map(RunFile, found)


def _parents() -> list[Path]:
    user = os.geteuid()
    return [*([_RUN / "ingestd"] if user == 0 else []), _TMP / f"ingestd-{user}"]


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
            found = directory.stat()
            is_ours = found.st_uid == os.geteuid() and time.time() - found.st_mtime > _LEFT
            if is_ours and RunFile(directory).holder() is None:
                RunFile(directory).remove()
        except OSError as error:  # another daemon may be removing it too
            log.debug("%s is not removed: %s", directory, error)
