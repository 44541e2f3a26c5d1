"""The messages to NOTIFY_SOCKET, and that no supervisor can harm the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.daemon.notifier import Notifier
from ingestd.daemon.waits import Waits
from ingestd.support.periodic import TIMING


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


@pytest.fixture
def notifier(supervisor: socket.socket) -> Iterator[Notifier]:
    made = Notifier({"NOTIFY_SOCKET": supervisor.getsockname()})
    yield made
    made.close()


def told(supervisor: socket.socket) -> list[str]:
    return supervisor.recv(65536).decode().split("\n")


def all_told(supervisor: socket.socket) -> Iterator[list[str]]:
    supervisor.setblocking(False)
    while True:
        try:
            yield told(supervisor)
        except BlockingIOError:
            return


def test_each_state_is_one_message_with_its_words(notifier: Notifier, supervisor: socket.socket) -> None:
    notifier.ready("serving")
    assert told(supervisor) == ["READY=1", "STATUS=serving"]
    notifier.status("waiting for the moon")
    assert told(supervisor) == ["STATUS=waiting for the moon"]
    notifier.stopping("shutting down", 50.5)
    assert told(supervisor) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=50500000", "STATUS=shutting down"]


def test_a_reload_has_the_time_of_its_start(notifier: Notifier, supervisor: socket.socket) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, moment, status = told(supervisor)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert (first, status) == ("RELOADING=1", "STATUS=reloading the configuration")
    name, _, value = moment.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= after


def test_no_text_can_become_another_assignment(notifier: Notifier, supervisor: socket.socket) -> None:
    notifier.status("refused:\nERRNO=5\r\nnot \ud800 text")
    assert told(supervisor) == ["STATUS=refused: ERRNO=5 not ? text"]


async def test_the_status_is_renewed_with_the_watchdog_and_a_remark_stays(supervisor: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "60000"}
    notifier = Notifier(environment)
    assert notifier.watchdog == pytest.approx(0.06)
    beat = asyncio.ensure_future(notifier.keepalive(lambda seconds: f"serving, asked after {seconds > 0.015}"))
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, told, supervisor) == ["WATCHDOG=1", "STATUS=serving, asked after True"]
    notifier.remark("the last reload was refused")
    messages = [await loop.run_in_executor(None, told, supervisor) for _ in range(3)]
    assert messages[-1] == ["WATCHDOG=1", "STATUS=serving, asked after True; the last reload was refused"]
    beat.cancel()
    notifier.close()


async def test_a_long_start_extends_the_timeout_until_it_ends(
    notifier: Notifier, supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TIMING, "wait_told", 0.0)
    extension = ["STATUS=starting: opening the store", "EXTEND_TIMEOUT_USEC=30000000"]
    async with Waits(notifier).wait("starting: opening the store"):
        assert [await asyncio.to_thread(told, supervisor) for _ in range(2)] == [extension, extension]
    await asyncio.sleep(0.01)
    assert [*all_told(supervisor)] == []


@pytest.mark.parametrize(
    ("watchdog", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "ours"}, 30.0),
    ],
    ids=["none", "anybody's", "another's", "ours"],
)
def test_the_watchdog_may_be_for_another_process(
    watchdog: dict[str, str], expected: float | None, supervisor: socket.socket
) -> None:
    ours = {name: value.replace("ours", str(os.getpid())) for name, value in watchdog.items()}
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname(), **ours})
    assert notifier.watchdog == expected
    notifier.close()


@pytest.mark.logs("WATCHDOG_USEC is '.*', and must be a positive whole number: the watchdog is not fed")
@pytest.mark.parametrize("given", ["", "0", "-5", "soon", "٣"], ids=ascii)
def test_a_watchdog_without_a_valid_time_is_ignored(given: str, supervisor: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": given})
    assert notifier.watchdog is None
    notifier.close()


@pytest.mark.logs("cannot send (READY=1|STOPPING=1) to systemd")
def test_a_supervisor_that_no_longer_listens_does_no_harm(
    notifier: Notifier, supervisor: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor.close()
    notifier.ready("serving")
    notifier.stopping("shutting down", 1)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2


async def test_a_slow_supervisor_does_not_block_the_event_loop(supervisor: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"X_FULL=1", supervisor.getsockname())
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "30000"})
    asked: list[float] = []

    def describe(seconds: float) -> str:
        asked.append(seconds)
        return "serving"

    beat = asyncio.ensure_future(notifier.keepalive(describe))
    await asyncio.sleep(0.3)
    beat.cancel()
    notifier.close()
    assert len(asked) > 3  # a blocking send would have waited a second each time


def test_without_a_supervisor_nothing_is_done() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog is None
    notifier.ready("serving")
    notifier.close()
