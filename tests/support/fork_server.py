"""A process that has imported ingestd, and forks itself for each command. `forked.py` starts it and sends requests.

A request is a JSON object with the arguments, the folder, the environment and the umask, together with the three
standard streams. The answer is the number of a new process, a child of the requester like one that it starts itself.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import gettext
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call by machine."""
_CLONE_PARENT = 0x8000  # the new process is a child of our parent
_SEPARATE = (
    "ingestd.testing", "ingestd.__main__", "ingestd.plugins.sinks.parquet", "ingestd.plugins.sinks.iceberg",
)  # fmt: skip
"""pyarrow needs the environment of `LIBRARIES`, and half a second."""
LIBRARIES = "INGESTD_TESTS_LIBRARIES"
"""The variable with further modules that the fork server imports."""
_MOST = 100_000
_STARTED_WITH = os.environ.get("PYTHONPATH", "")


def main() -> int:
    program = sys.argv[1]
    sys.path[0] = os.path.dirname(program)
    requests = socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who wait for commands
    _import_all()
    _look_at_all()
    gettext.find = functools.cache(gettext.find)  # type: ignore[assignment]  # argparse looks 145 times
    gc.collect()
    gc.freeze()
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _MOST, 3)
        if not message:  # the requester has ended
            return 0
        pid = _fork()
        if pid == 0:
            requests.close()
            request = json.loads(message)
            from ingestd.support.periodic import TIMING

            vars(TIMING).update(request.pop("times"))
            _become(program, streams, **request)
            from ingestd.__main__ import main as command

            return _end(command())
        for stream in streams:
            os.close(stream)
        requests.send(str(pid).encode())


def _import_all() -> None:
    # A library for SBOMs. Where it is installed, `jsonschema` imports it too, which takes a second for a grammar.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    import ingestd

    for module in pkgutil.walk_packages(ingestd.__path__, "ingestd."):
        if not module.name.startswith(_SEPARATE):
            importlib.import_module(module.name)
    for name in os.environ.get(LIBRARIES, "").split():
        importlib.import_module(name)


def _look_at_all() -> None:
    """Does once what each command does first: Python and msgspec keep what they find out about classes and patterns.

    The plugins of a module path, what is found out about classes of plugins, and the compiled built-in schemas are
    kept, too.
    """
    from ingestd.cli import main
    from ingestd.daemon.generation import first_generation
    from ingestd.hooks import loader, plugin_validation
    from ingestd.validation.validator import Validator

    for module, name in (
        (plugin_validation, "_check_coroutine_function"),
        (plugin_validation, "_check_options"),
        (plugin_validation, "_hook_names"),
        (loader, "check_plugin_class"),
    ):
        setattr(module, name, functools.cache(getattr(module, name)))

    find, load = functools.cache(lambda path, find=loader._available: find()), Validator.load
    loader._available = lambda: find(tuple(sys.path))
    built_in = load()
    Validator.load = lambda directory=None: built_in if directory is None else load(directory)  # type: ignore[method-assign]
    config, plugins = main.defaults()
    first_generation(config, plugins)
    main.command_line(plugins)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"


def _fork() -> int:
    """Like `os.fork`, which cannot make the new process a child of our parent."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = ctypes.pythonapi.syscall(CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _become(
    program: str,
    streams: list[int],
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    umask: int,
    *,
    closed: bool,
) -> None:
    """Makes this process look like the installed command that has just been started."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Both names are set, as by a start.
    if closed:
        os.closerange(0, len(streams))
        sys.stdin = sys.__stdin__ = sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = None  # type: ignore[misc]
    else:
        sys.stdin = sys.__stdin__ = _reopened(sys.stdin, "rb")  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = _reopened(sys.stdout, "wb")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _reopened(sys.stderr, "wb")  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.umask(umask)
    _set_module_path(environment.get("PYTHONPATH", ""))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [program, *arguments]
    with open(program, encoding="utf-8") as script:
        interpreter = script.readline().removeprefix("#!").strip()
    # Here others read them: `ps`, and `ingestd reload`.
    _overwrite(48, [interpreter, *sys.argv])
    _overwrite(50, [f"{name}={value}" for name, value in environment.items()])


def _set_module_path(path: str) -> None:
    """Puts these folders where Python has them, behind that of the program. Those of this process's start are there."""
    own = [os.path.abspath(each) for each in _STARTED_WITH.split(os.pathsep) if each]
    new = [os.path.abspath(each) for each in path.split(os.pathsep) if each]
    assert sys.path[1 : 1 + len(own)] == own
    sys.path[1 : 1 + len(own)] = new
    importlib.invalidate_caches()  # folders of the module path may have changed


def _end(code: int) -> int:
    """Ends this process as Python does, but for the removal of all modules, which takes a third of a command's time.

    Returns the code if Python has to report a failure of the last output.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    os._exit(code)


def _reopened(old: Any, mode: str) -> io.TextIOWrapper:
    """The stream as Python opens it at a start: what it is now, a terminal or not, decides its buffering."""
    line_buffering = old is sys.stderr or os.isatty(old.fileno())
    return io.TextIOWrapper(
        open(old.fileno(), mode, closefd=False),
        encoding=old.encoding, errors=old.errors, newline=None if mode == "rb" else "\n",
        line_buffering=line_buffering, write_through=old.write_through,
    )  # fmt: skip


def _overwrite(field: int, texts: list[str]) -> None:
    """Writes texts into memory that /proc shows. This field of /proc/self/stat is its start, and the next its end."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[field - 3 : field - 1])
    text = b"\0".join(map(os.fsencode, texts))[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    sys.exit(main())
