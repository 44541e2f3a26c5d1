"""Rules for every test: a log line at WARNING or above that the test does not announce fails it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tornado.ioloop import IOLoop

# How long an example takes says something about the machine, and nothing about the promise.
settings.register_profile("ingestd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ingestd")

# A shell's background job ignores SIGINT, and so would the daemons that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """The tests themselves stay: whoever looks for garbage need not go through six thousand of them."""
    gc.freeze()


@pytest.fixture(autouse=True)
def no_unexpected_log_lines(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`@pytest.mark.logs("regex", …)` announces the lines a test provokes."""
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


@pytest.fixture(scope="session", params=["fast", "tornado"])
def http_server(request: pytest.FixtureRequest) -> str:
    """`[http] server`: what uses it is tested with both."""
    name: str = request.param
    return name


@pytest.fixture
def io_loop() -> Iterator[IOLoop]:
    """The loop an async test runs on, in place of pytest-tornasync's, which calls what Tornado deprecated."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    loop = IOLoop.current()
    yield loop
    loop.close(all_fds=True)
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def loop_for_async_tests(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("io_loop")
