"""The daemons that run with a configuration, as `ingestd reload` finds them.

On this machine these are the daemons started with the configuration's file, and the daemons that have its store. The
name of the file must suffice: the file may be faulty now, or name another store than before.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingestd.api.backend import DaemonProcess
from ingestd.api.errors import ConfigError, IngestdError, Unavailable
from ingestd.config import load_config
from ingestd.daemon.run_file import RunFile, RunState, find_run_files, runtime_directory
from ingestd.hooks.loader import load_plugins
from ingestd.storage.backends import Backends

__all__ = ["RunningDaemon", "RunningDaemons", "find_daemons", "systemd_unit", "user_of"]

_STORE_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class RunningDaemon:
    file: RunFile
    state: RunState


@dataclass
class RunningDaemons:
    here: list[RunningDaemon] = field(default_factory=list)
    without_file: list[int] = field(default_factory=list)
    """Processes on this machine that have the store, but no readable run file."""
    elsewhere: list[DaemonProcess] = field(default_factory=list)
    """Daemons on other machines that have the store."""
    is_partial: bool = False
    """Whether only another user may read some run files or the store."""
    store_failure: IngestdError | None = None
    """Why the store could not be asked, otherwise None."""


async def find_daemons(config: Path, overrides: Sequence[str]) -> RunningDaemons:
    found = RunningDaemons()
    running: dict[int | Path, RunningDaemon] = {}
    for file in find_run_files():
        try:
            state = file.read()
        except OSError as error:  # another user's file may be anything
            found.is_partial |= isinstance(error, PermissionError)
        else:
            if state is not None:  # a symbolic link may lead to one run file twice
                running.setdefault(state.pid or file.directory, RunningDaemon(file, state))
    processes = await _ask_store(config, overrides, found)
    host = socket.gethostname()
    owners = {each.pid for each in processes if each.host == host}
    found.here = [each for each in running.values() if each.state.pid in owners or _is_same(config, each.state.config)]
    for pid in sorted(owners - running.keys()):
        daemon = _daemon_of(pid)
        if daemon is not None:
            found.here.append(daemon)
        elif _is_serving(pid):
            found.without_file.append(pid)
    found.elsewhere = sorted({each for each in processes if each.host != host}, key=lambda each: (each.host, each.pid))
    return found


async def _ask_store(config: Path, overrides: Sequence[str], found: RunningDaemons) -> Sequence[DaemonProcess]:
    try:
        configuration = load_config(config, overrides)
        async with asyncio.timeout(_STORE_TIMEOUT):
            return await Backends(configuration, load_plugins(configuration)).daemons()
    except (ConfigError, Unavailable) as error:
        found.store_failure = error
    except TimeoutError:
        found.store_failure = Unavailable("the store does not answer")
    except OSError as error:
        found.is_partial |= isinstance(error, PermissionError)
        found.store_failure = Unavailable(str(error))
    return []


def _is_same(config: Path, other: str) -> bool:
    """Compare the paths as written and as resolved: a symbolic link may have changed since the daemon's start."""
    return bool(other) and (os.path.abspath(config) == other or os.path.realpath(config) == os.path.realpath(other))


def _daemon_of(pid: int) -> RunningDaemon | None:
    """The daemon in this process, found by its environment: `RUNTIME_DIRECTORY` may be outside /run."""
    try:
        variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        pairs = (each.partition(b"=") for each in variables)
        directory = runtime_directory({os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs})
        state = None if directory is None else RunFile(directory).read()
    except OSError:  # another user's process, which `without_file` then lists, or a process that has ended
        return None
    if directory is None or state is None or state.pid != pid:
        return None
    return RunningDaemon(RunFile(directory), state)


def _is_serving(pid: int) -> bool:
    """Whether the process looks like a daemon: in a container, another process may have its number."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"serve" in words and any(b"ingestd" in word for word in words)


def user_of(pid: int) -> str | None:
    """The name of the process's user, None if it is our user, or if the process is hidden or gone."""
    try:
        user = Path("/proc", str(pid)).stat().st_uid
    except OSError:
        return None
    if user == os.geteuid():
        return None
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def systemd_unit(pid: int) -> str | None:
    """The systemd service that contains the process."""
    try:
        groups = Path("/proc", str(pid), "cgroup").read_text()
    except OSError:
        return None
    for line in groups.splitlines():
        _, slice_, unit = line.rpartition("/system.slice/")
        if slice_ and unit.endswith(".service"):
            return unit.rpartition("/")[2]
    return None
