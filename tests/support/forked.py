"""Processes of the command `ingestd`, forked from one that has imported it: a fifth of the time of a start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from threading import Lock
from typing import Any

from .fork_server import CLONE, LIBRARIES

__all__ = ["INGESTD", "QUICK_REDIS", "Command", "fork_servers", "run", "short_times", "with_libraries"]

INGESTD = str(Path(sys.executable).with_name("ingestd"))
_SERVER = Path(__file__).with_name("fork_server.py")
_ROOM = " " * 4000  # for the arguments of the processes that it forks, and for their environment
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "FAKETIME", "MALLOC")
"""Variables that count when a process starts begin with these. The others are set in the forked process.

A module path counts only if it has a module that the fork server would find elsewhere.
"""
_MOST_SERVERS = 3
_DEARER_THAN = 2  # real starts
_KNOWN = {"ingestd", "sitecustomize", "usercustomize"}
_times: dict[str, float] = {}
"""Times of `Timing` that forked processes have instead of the usual ones."""
_libraries: dict[str, str] = {}
"""The variables of a fork server that imports further modules."""
_PLAIN = (True, None, None, None, -1, False, -1)
"""The defaults of `Popen`: signals restored; no group, groups, user, umask, session or process group."""


QUICK_REDIS = {"redis_lease": 2.0, "redis_heartbeat": 0.5, "redis_report": 3.0, "redis_report_shared": 2.5}
"""Times with which a daemon on Redis is missed soon, and yet may be late on a busy machine."""


@contextmanager
def short_times(**seconds: float) -> Iterator[None]:
    """Gives other times of `Timing` to the daemons that are started meanwhile."""
    before = {**_times}
    _times.update(seconds)
    try:
        yield
    finally:
        _times.clear()
        _times.update(before)


@contextmanager
def with_libraries(*modules: str) -> Iterator[None]:
    """Processes that are started meanwhile have these modules, which take longer to import than all of ingestd.

    A fork would lose the threads that numpy and pyarrow start when they are imported.
    """
    assert not _libraries
    no_threads = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    _libraries.update(no_threads, **{LIBRARIES: " ".join(modules)})
    try:
        yield
    finally:
        _libraries.clear()


class _Server:
    """A fork server. It ends when this process ends, or with `close`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, _SERVER, INGESTD, str(theirs.fileno()), _ROOM],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env={**environment, "ROOM": _ROOM},
            )  # fmt: skip

    def start(
        self, arguments: list[str], folder: str, environment: dict[str, str], streams: list[int], *, closed: bool
    ) -> int:
        """The number of a new process, which is our child."""
        status = Path("/proc/self/status").read_text()
        umask = int(status.partition("Umask:")[2].split()[0], 8)
        request = {
            "arguments": arguments, "folder": folder, "environment": environment, "umask": umask, "closed": closed,
            "times": _times,
        }  # fmt: skip
        socket.send_fds(self._requests, [json.dumps(request).encode()], streams)
        pid = int(self._requests.recv(100) or 0)
        assert pid > 0, "the fork server has failed"
        return pid

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


class _Starts:
    """Counts starts with an environment, and has its fork server when that has become worth its own start."""

    def __init__(self) -> None:
        self._count = 0
        self._server: _Server | None = None

    def server(self, environment: Mapping[str, str]) -> _Server | None:
        self._count += 1
        if self._server is None and (self._count > _DEARER_THAN or _times or _libraries):
            self._server = _Server({**environment, **_libraries})
        return self._server

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


_lock = Lock()
_starts: dict[frozenset[tuple[str, str]], _Starts] = {}
"""By the variables that count when a process starts, the latest last."""


def fork_servers() -> set[int | None]:
    """The numbers of the fork servers, which are children of this process."""
    return {each.pid for each in _starts.values()}


class Command(subprocess.Popen[Any]):
    """A process like `subprocess.Popen`. It is forked if it runs `ingestd` with nothing that only a start can have.

    With `closed`, its three standard streams are closed.
    """

    def __init__(self, args: Sequence[str], *, closed: bool = False, **options: Any) -> None:
        self._closed = closed
        super().__init__(args, **options)

    def _execute_child(  # type: ignore[no-untyped-def]  # the method of `Popen` that starts the process
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *further
    ) -> None:
        streams, process = further[:6], further[6:]
        plain = process == _PLAIN and not (preexec_fn or pass_fds or shell)
        if plain and args[0] == INGESTD and os.uname().machine in CLONE:
            in_, _, _, out, _, err = streams
            inherited = [number if own == -1 else own for number, own in enumerate((in_, out, err))]
            folder, environment = os.fspath(cwd or os.getcwd()), os.environ if env is None else env
            pid = _fork(args[1:], folder, environment, inherited, closed=self._closed)
            if pid is not None:
                self.pid = pid
                self._child_created = True
                self._close_pipe_fds(*streams)  # type: ignore[attr-defined]
                return
        if self._closed:
            executable, args = None, ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *args]
        super()._execute_child(  # type: ignore[misc]
            args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *further
        )


def _fork(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: list[int], *, closed: bool
) -> int | None:
    """The number of the forked process, None if there is no fork server for this environment."""
    kept = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    path = kept.get("PYTHONPATH", "")
    later = {"PYTHONPATH"} if path and not _replaces_modules(path) else set()
    at_start = {name: value for name, value in kept.items() if name not in later}
    counting = {name: value for name, value in at_start.items() if name.startswith(_AT_START)}
    key = frozenset({**counting, **_libraries}.items())
    with _lock:
        starts = _starts.pop(key) if key in _starts else _Starts()
        _starts[key] = starts
        if len(_starts) > _MOST_SERVERS:
            _starts.pop(next(iter(_starts))).close()
        server = starts.server(at_start)
        words = list(map(os.fsdecode, arguments))
        return None if server is None else server.start(words, folder, kept, streams, closed=closed)


def _replaces_modules(path: str) -> bool:
    """Whether a folder of this module path has a module that ingestd, Python or an installed library has too."""
    files = (file for folder in path.split(os.pathsep) for file in Path(folder).glob("[!_]*"))
    names = {file.name.partition(".")[0] for file in files}
    if names & (_KNOWN | sys.stdlib_module_names):
        return True
    return any(PathFinder.find_spec(name, [sysconfig.get_path("purelib")]) for name in names if name.isidentifier())


def run(command: Sequence[str], *, timeout: float = 60.0, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a command to its end like `subprocess.run`, with its output captured unless the options say otherwise."""
    given = options.pop("input", None)
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **({} if given is None else {"stdin": subprocess.PIPE}),
    }
    with Command(command, **{**pipes, **options}) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
