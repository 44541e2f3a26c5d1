"""Simultaneous clients: all at one moment, or as a continuous load that keeps its answers."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from .daemon import BASE, PATIENCE

__all__ = ["Load", "Sent", "at_once", "wait_until"]

_T = TypeVar("_T")


def wait_until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Waits until the condition holds, and fails after `patience` seconds.

    The longer it has waited, the less often it asks, because an answer costs a daemon milliseconds.
    """
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < patience, "the condition did not become true in time"
        time.sleep(min(max(waited / 10, 0.01), 0.1))


def at_once(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Makes all calls at one moment, each in a thread, and returns their results in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], _T]) -> _T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@dataclass
class Sent:
    """One sent event, and its answer if there was one."""

    number: str
    """The unique number in the event's `data`."""
    visitor: str
    begun: float
    """The start of sending, by time.monotonic()."""
    status: int | None = None
    session: dict[str, Any] | None = None


class Load:
    """Threads that send events to /track one after the other, until `stop` or until the daemon stops listening.

    Every second thread keeps its connection, the others open one for each event. Numbers begin with
    `name`, so that loads can be distinguished. All loads and threads share five visitors.
    """

    def __init__(self, port: int, key: str, name: str = "load", *, threads: int = 8) -> None:
        self.sent: list[Sent] = []
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}"}
        self._name = name
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Sends no more events, and waits for the pending answers."""
        self._stopping.set()
        self.join()

    def join(self) -> None:
        """Waits until the daemon has stopped listening."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    @property
    def answered(self) -> list[Sent]:
        """The events that were answered 200."""
        return [sent for sent in self.sent if sent.status == 200]

    def _run(self, thread: int) -> None:
        connection = self._connect()
        count = 0
        while not self._stopping.is_set():
            count += 1
            sent = Sent(f"{self._name}-{thread}-{count}", f"visitor-{count % 5}", 0.0)
            body = {"key": "Page View", "anonymousId": sent.visitor, "data": {"number": sent.number}}
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                return
            sent.begun = time.monotonic()
            self.sent.append(sent)
            # Some tests expect events without an answer. The thread continues with the next event.
            with suppress(OSError, http.client.HTTPException):
                connection.request("POST", f"{BASE}/track", json.dumps(body), self._headers)
                answer = connection.getresponse()
                read = json.loads(answer.read())
                sent.status, sent.session = answer.status, read.get("session")
            if sent.status is None or thread % 2:
                connection.close()
                connection = self._connect()
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
