"""The life of a process that runs tests for `pytest --processes N`."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

__all__ = ["work"]

_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def work(session: pytest.Session, connection: Connection, folder: Path) -> NoReturn:
    """Runs units of tests until none is left. It does not return."""
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the other process, which passes it on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGINT)
        os.register_at_fork(after_in_child=connection.close)
        atexit._clear()
        _separate(session.config, folder)
        reports = _Reports(session.config)
        session.config.pluginmanager.register(reports)
        reports.connection = connection
        try:
            try:
                _run_units(session, connection)
            finally:
                signal.signal(signal.SIGINT, _ignore)
        finally:  # also if the signal came just before
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
            session.config._ensure_unconfigure()  # fails if an object that nobody has closed is found
            atexit._run_exitfuncs()
            for process in multiprocessing.active_children():  # its function at exit is not there: see `_clear`
                process.terminate()
        connection.send(("ended", None))
    except pytest.exit.Exception as end:
        connection.send(("exit", (end.msg, end.returncode)))
    except BaseException:  # noqa: BLE001  # the other process tells it
        with suppress(OSError):  # the other process no longer listens
            connection.send(("broken", traceback.format_exc()))
    finally:
        os._exit(0)


class _Reports:
    """The plugin of a process with tests. It tells the other process what pytest shows."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.connection: Connection | None = None  # a new plugin hears again of warnings that the other process knows

    def _send(self, kind: str, content: object) -> None:
        if self.connection:
            self.connection.send((kind, content))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str, location: object) -> None:
        warning = warning_message
        text, category = str(warning.message), warning.category.__name__
        self._send("warning", (text, category, warning.filename, warning.lineno, nodeid, location))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """The end of the run does not interrupt what ends a server of a test."""
        interruptible = signal.signal(signal.SIGINT, _ignore)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is _ignore:
                signal.signal(signal.SIGINT, interruptible)


def _ignore(number: int, frame: object) -> None:
    """Unlike `signal.SIG_IGN`, it is not for the programs that a process starts."""


def _separate(config: pytest.Config, folder: Path) -> None:
    """Gives the process its own captured output and temporary folder, and takes the terminal away."""
    config.workerinput = {"workerid": folder.name}  # type: ignore[attr-defined]  # plugins know a worker of pytest-xdist by it
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    capture.stop_global_capturing()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # the terminal would stop a process that asks for a line
    capture.start_global_capturing()
    config.option.basetemp = folder
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]


def _run_units(session: pytest.Session, connection: Connection) -> None:
    unit = _Following(session, connection).unit
    while unit:
        *tests, last = (session.items[number] for number in unit)
        for test, next_test in pairwise([*tests, last]):
            _run(session, connection, test, next_test)
        following = _Following(session, connection)
        _run(session, connection, last, following)
        unit = following.unit


class _Following:
    """Stands for the first test of the next unit, and asks for the unit once pytest ends what that test does not use.

    A process that asked before its last test would withhold a unit from the others.
    """

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session, self._connection = session, connection

    @cached_property
    def unit(self) -> list[int]:
        self._connection.send(("ready", None))
        unit: list[int] = self._connection.recv()
        return unit

    def listchain(self) -> list[Any]:
        return self._session.items[self.unit[0]].listchain() if self.unit else []


def _run(session: pytest.Session, connection: Connection, test: pytest.Item, following: object) -> None:
    connection.send(("started", None))
    session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
