"""`pytest --processes N`: runs the tests in N processes, which are forked once all tests are collected.

With pytest-xdist each process collects all tests, which takes six of them a minute of CPU. Here they share one
collection and what it has imported.
"""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from collections import deque
from contextlib import suppress
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .work_units import work_units

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, metavar="N", help="Run the tests in N processes.")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.processes > 1:
        config.pluginmanager.register(_Parallel(config.option.processes))


class _Parallel:
    """The plugin of the process that collects. It hands out units of tests, and tells pytest what others report."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._started = 0
        self._units: deque[list[int]] = deque()
        self._workers: dict[Connection, _Worker] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # the loop of pytest says why no test runs
        numbers = {test: number for number, test in enumerate(session.items)}
        self._units.extend([numbers[test] for test in unit] for unit in work_units(session.items))
        try:
            for _ in range(min(self._processes, len(self._units))):
                self._start(session)
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._hear(session, self._workers[connection])
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
        finally:
            for worker in self._workers.values():  # they end what their tests have started
                worker.connection.close()
                os.kill(worker.pid, signal.SIGINT)
            for worker in self._workers.values():
                os.waitpid(worker.pid, 0)
        return True

    def _start(self, session: pytest.Session) -> None:
        self._started += 1
        folder = _temporary_folder(session.config) / f"process-{self._started}"
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers):
                connection.close()
            _work(session, theirs, folder)
        theirs.close()
        self._workers[ours] = _Worker(pid, ours)

    def _hear(self, session: pytest.Session, worker: _Worker) -> None:
        hook, config = session.config.hook, session.config
        kind, content = worker.receive()
        if kind == "ready":
            unit = self._units.popleft() if self._units else []
            worker.tests.extend(unit)
            worker.connection.send(unit)
        elif kind == "started":
            worker.test = worker.tests.popleft()
        elif kind == "report":
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=content))
        elif kind == "broken":
            worker.last_words = content
        elif kind == "ended":
            worker.ended = True
        else:
            self._replace(session, worker)

    def _replace(self, session: pytest.Session, worker: _Worker) -> None:
        """A process has ended. If it did so amid a test, that test has failed, and another process runs the others."""
        del self._workers[worker.connection]
        worker.connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if worker.ended:
            return
        words = worker.last_words or f"its process ended with {os.waitstatus_to_exitcode(status)}"
        if worker.test is None:
            raise RuntimeError(words)
        nodeid = session.items[worker.test].nodeid
        file = nodeid.partition("::")[0]
        report = pytest.TestReport(nodeid, (file, None, file), {}, "failed", words, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        if worker.tests:
            self._units.appendleft(list(worker.tests))
        if self._units:
            self._start(session)


class _Worker:
    """A process with tests, as seen by the one that has collected them."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.tests: deque[int] = deque()  # not begun yet
        self.test: int | None = None
        self.last_words = ""
        self.ended = False

    def receive(self) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return "gone", None
        return message


class _Reports:
    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _temporary_folder(config: Any) -> Path:
    folder: Path = config._tmp_path_factory.getbasetemp()
    return folder


def _work(session: pytest.Session, connection: Connection, folder: Path) -> NoReturn:
    """The whole life of a forked process."""
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the other process, which passes it on
        atexit._clear()
        _separate(session.config, folder)
        session.config.pluginmanager.register(_Reports(session.config, connection))
        try:
            _run_units(session, connection)
        finally:
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
            atexit._run_exitfuncs()
        connection.send(("ended", None))
    except BaseException:  # noqa: BLE001  # the other process tells it
        with suppress(OSError):  # the other process no longer listens
            connection.send(("broken", traceback.format_exc()))
    finally:
        os._exit(0)


def _separate(config: pytest.Config, folder: Path) -> None:
    """Gives the process its own captured output and temporary folder, and takes the terminal away."""
    config.workerinput = {"workerid": folder.name}  # type: ignore[attr-defined]  # plugins know a worker of pytest-xdist by it
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.option.basetemp = folder
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]


def _run_units(session: pytest.Session, connection: Connection) -> None:
    def next_unit() -> list[int]:
        connection.send(("ready", None))
        unit: list[int] = connection.recv()
        return unit

    unit = next_unit()
    while unit:
        *tests, last = (session.items[number] for number in unit)
        for test, following in pairwise([*tests, last]):
            _run(session, connection, test, following)
        unit = next_unit()  # before the last test, because it ends what the next one does not use
        _run(session, connection, last, session.items[unit[0]] if unit else None)


def _run(session: pytest.Session, connection: Connection, test: pytest.Item, following: pytest.Item | None) -> None:
    connection.send(("started", None))
    session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
