"""`pytest --processes N`: runs the tests in N processes, which are forked once all tests are collected.

With pytest-xdist each process collects all tests, which takes six of them a minute of CPU. Here they share one
collection and what it has imported.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from .parallel_process import work
from .work_units import work_units

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, metavar="N", help="Run the tests in N processes.")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.processes > 1:
        if config.option.usepdb or config.option.trace or config.option.setupshow:
            raise pytest.UsageError("--pdb, --trace and --setup-show need the terminal, which --processes takes away")
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
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
        finally:
            self._end()
        return True

    def _end(self) -> None:
        try:
            for worker in self._workers.values():  # they end what their tests have started
                worker.connection.close()
                os.kill(worker.pid, signal.SIGINT)
            for connection in list(self._workers):
                os.waitpid(self._workers[connection].pid, 0)
                del self._workers[connection]
        except KeyboardInterrupt:  # the second one: a test or its end hangs
            for worker in self._workers.values():
                _kill(worker)
            raise

    def _start(self, session: pytest.Session) -> None:
        self._started += 1
        folder = _temporary_folder(session.config) / f"process-{self._started}"
        ours, theirs = Pipe()
        # A new process that Ctrl-C interrupts before `work` would go on like this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers):
                connection.close()
            work(session, theirs, folder)
        theirs.close()
        self._workers[ours] = _Worker(pid, ours)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _hear(self, session: pytest.Session, worker: _Worker) -> None:
        hook, config = session.config.hook, session.config
        kind, content = worker.receive()
        if kind == "ready":
            unit = self._units.popleft() if self._units else []
            worker.tests.extend(unit)
            with suppress(OSError):  # it has died, which the next message tells
                worker.connection.send(unit)
        elif kind == "started":
            worker.test = worker.tests.popleft()
        elif kind == "report":
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=content))
        elif kind == "warning":
            text, category, *place, nodeid, location = content
            warning = warnings.WarningMessage(text, type(category, (Warning,), {}), *place)
            told = {"warning_message": warning, "when": "runtest", "nodeid": nodeid, "location": location}
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif kind == "exit":
            pytest.exit(*content)
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
        if not worker.ended:
            _kill(worker)
        _, status = os.waitpid(worker.pid, 0)
        if worker.ended:
            return
        words = worker.last_words or f"its process ended with {os.waitstatus_to_exitcode(status)}"
        if worker.test is None:
            raise RuntimeError(words)
        test = session.items[worker.test]
        report = pytest.TestReport(test.nodeid, test.location, {}, "failed", words, "call")
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
        except (EOFError, OSError):  # before or amid a message
            return "gone", None
        return message


def _temporary_folder(config: Any) -> Path:
    folder: Path = config._tmp_path_factory.getbasetemp()
    return folder


def _kill(worker: _Worker) -> None:
    """Kills a process and what its tests have started."""
    with suppress(ProcessLookupError):  # it has no group yet
        os.killpg(worker.pid, signal.SIGKILL)
