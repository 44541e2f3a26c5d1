"""`ingestd.json` in the runtime directory: which process the daemon is, and what came of its reloads.

The directory is `RUNTIME_DIRECTORY`, which systemd sets for `RuntimeDirectory=`; without it there is no file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["RunFile", "RunState", "runtime_directory"]

log = logging.getLogger("ingestd.reload")

_NAME = "ingestd.json"


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`begun` and `ended` count reloads; `refused` and `code` are why the last one that ended was refused, and the
    exit code that stands for that.
    """

    pid: int
    since: str
    """When the process began, in the system's own count: another one may get its number."""
    generation: int = 1
    begun: int = 0
    ended: int = 0
    refused: str | None = None
    code: int = 0

    @property
    def alive(self) -> bool:
        """Whether that process still runs."""
        return _since(self.pid) == self.since


class RunFile:
    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / _NAME

    def read(self) -> RunState | None:
        """None where no daemon has written it. Raises `OSError`."""
        if self._path is None:
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=RunState)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def first(self) -> RunState:
        """The state of this process, as it begins."""
        return RunState(pid=os.getpid(), since=_since(os.getpid()))

    def write(self, state: RunState) -> None:
        """Whole, or not at all. That it cannot be written is logged: a daemon does not need it to serve."""
        if self._path is None:
            return
        beside = self._path.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode(state) + b"\n")
            beside.replace(self._path)
        except OSError as error:
            log.warning("ingestd reload will not know what comes of it: %s", error)

    def remove(self) -> None:
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s", error)


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The first, where the unit has several."""
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else None


def _since(pid: int) -> str:
    """Empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(") ")[2].split()[19]  # behind the name, which may hold anything; proc(5) calls it 22
