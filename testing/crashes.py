"""Async work in a separate process that is killed during it, to test the state after a crash."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

__all__ = ["killed_after"]

_PATIENCE = 60.0
_FAILED = b"!"

Report = Callable[[], None]


def killed_after(reports: int, work: Callable[[Report], Coroutine[Any, Any, None]], *, pause: float = 0.0) -> int:
    """Run the work in a fork of this process, and kill it (SIGKILL) once it has called `report` so often.

    The kill comes `pause` seconds after that. Returns the number of reports before the end, which may be higher. Raises
    `AssertionError` if the work fails or takes longer than a minute. Call it outside of any event loop.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads. This fork uses nothing that a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    told = b""
    deadline = time.monotonic() + _PATIENCE
    try:
        while len(told) < reports and _FAILED not in told:
            if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                break
            chunk = os.read(reading, 65536)
            if not chunk:
                break
            told += chunk
        time.sleep(pause)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with open(reading, "rb") as rest:
            told += rest.read()
    done, failed, error = told.partition(_FAILED)
    assert not failed, f"failed in the separate process:\n{error.decode()}"
    assert len(done) >= reports, f"{len(done)} of {reports} were done within {_PATIENCE:g} s"
    return len(done)


def _work(work: Callable[[Report], Coroutine[Any, Any, None]], writing: int) -> NoReturn:
    def report() -> None:
        os.write(writing, b".")

    try:
        asyncio.run(work(report))
    except BaseException:  # noqa: BLE001 - the test reports any error, and must not run twice
        os.write(writing, _FAILED + traceback.format_exc().encode())
    finally:
        os._exit(0)
