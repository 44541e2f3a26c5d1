"""Rules for all tests: a log line at WARNING or above fails a test that does not announce it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from tornado.ioloop import IOLoop

pytest_plugins = ["tests.support.parallel", "tests.support.door"]

# The duration of an example depends on the machine, so there is no deadline. `make test-long` takes the profile "long".
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", _ANY_MACHINE, max_examples=30)
settings.register_profile("long", _ANY_MACHINE, max_examples=500)
settings.load_profile("short")

# A library for SBOMs. Where it is installed, `jsonschema` imports it too, which takes each process a second.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A background job of a shell ignores SIGINT. Daemons that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Excludes the collected tests from garbage collection, because they stay and there are thousands of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_unexpected_log_lines(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`@pytest.mark.logs("regex", …)` announces the lines that a test causes."""
    yield
    expected = [pattern for mark in request.node.iter_markers("logs") for pattern in mark.args]
    lines = [
        f"{record.name} {record.levelname} {record.getMessage()}"
        for phase in ("setup", "call")
        for record in caplog.get_records(phase)
        if record.levelno >= logging.WARNING
    ]
    unexpected = [line for line in lines if not any(re.search(pattern, line) for pattern in expected)]
    assert not unexpected, "\n".join(unexpected)


@pytest.fixture(scope="session", params=["fast", pytest.param("tornado", marks=pytest.mark.long)])
def http_server(request: pytest.FixtureRequest) -> str:
    """The option `[http] server`. With Tornado, only `make test-long` runs the tests that use it.

    `tests/acceptance/test_servers_alike.py` compares the answers of both servers in each run.
    """
    name: str = request.param
    return name


@pytest.fixture(scope="session", params=["fast", "tornado"])
def each_http_server(request: pytest.FixtureRequest) -> str:
    """Like `http_server`, for promises about connections in time, which no comparison of answers shows."""
    name: str = request.param
    return name


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk, even if those of other tests are in memory (`scripts/tmpdir`)."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def io_loop() -> Iterator[IOLoop]:
    """The loop of an async test. It replaces pytest-tornasync's fixture, which uses deprecated functions of Tornado."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    loop = IOLoop.current()
    yield loop
    loop.close(all_fds=True)
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def loop_for_async_tests(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("io_loop")
