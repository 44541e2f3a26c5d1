"""Sends the events of a queue in batches, in a thread of its own."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from .folder import QueueFolder
from .transport import NoAnswer, Reply, Transport

__all__ = ["KeyRefused", "OnRefused", "Sender"]

OnRefused = Callable[[dict[str, Any], dict[str, Any]], object]

_log = logging.getLogger("ingestd.client")
_MOST = 100  # events of a request
_LARGEST = 250_000  # bytes of a request: the budget of wrong signatures begins above
_LONGEST_PAUSE = 600.0
_LOOKS_AGAIN = 60.0  # seconds
_GIVEN_UP = 24 * 3600 * 10**6  # microseconds
_STRANGERS = 3


class KeyRefused(Exception):
    """ingestd refuses the key or its signature (401), or the key has no grant (403). The events stay in the queue."""


class Sender:
    """Its thread begins at once, and sends what an earlier process has left."""

    def __init__(
        self,
        queue: QueueFolder,
        transport: Transport,
        key: str,
        secret: str,
        *,
        interval: float,
        on_refused: OnRefused | None,
    ) -> None:
        self._transport = transport
        self.queue = queue
        self._key = key
        self._secret = secret.encode()
        self._interval = interval
        self._on_refused = on_refused
        self._most = _MOST
        self._failures = 0
        self._strangers = 0
        self._pid = os.getpid()
        self.refusal: KeyRefused | None = None
        self._changed = Condition()
        self._has_work = True
        self._hurries = False
        self._ends = False
        self._thread = Thread(target=self._run, name="ingestd.client", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False in a process that was forked: the thread stayed behind."""
        return self._pid == os.getpid()

    def wake(self, *, hurries: bool = False) -> None:
        with self._changed:
            self._has_work = True
            self._hurries = self._hurries or hurries
            if hurries and self.refusal is not None:
                self.refusal = None
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Sends once more what waits, unless ingestd is away."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        pause = 0.0  # after a failure, in which nothing is sent
        again = _LOOKS_AGAIN  # when an event that was held may be due
        while self._wait(pause, again):
            pause, again = 0.0, _LOOKS_AGAIN
            try:
                with self.queue.one_sender() as may_send:
                    if may_send:
                        pause = self._send_all()
                    else:
                        again = 1.0
            except KeyRefused as error:
                _log.error("%s; events stay in the queue", error)
                with self._changed:
                    self.refusal = error
            except Exception:  # noqa: BLE001 - the thread goes on, for example when the disk is there again
                _log.exception("sending has failed")
                pause = _LOOKS_AGAIN
        self._transport.close()

    def _wait(self, pause: float, again: float) -> bool:
        """Waits until there is something to send. False: it is the end."""
        with self._changed:
            if pause:
                self._has_work = True
                self._changed.wait_for(lambda: self._ends, pause)
                if self._ends:
                    return False
            else:
                self._changed.wait_for(
                    lambda: self._ends or (self._has_work and self.refusal is None),
                    None if self.refusal is not None else again,
                )
                self._changed.wait_for(lambda: self._ends or self._hurries, self._interval)
            goes_on = not self._ends or (self._has_work and self.refusal is None)
            self._has_work = self._hurries = False
            return goes_on

    def _send_all(self) -> float:
        """Sends what waits. Returns the seconds after which to try again; 0: nothing failed."""
        for page in self.queue.pages():
            names = deque(page)
            while batch := self._take(names):
                if pause := self._send(batch, names):
                    return pause
        return 0.0

    def _send(self, batch: list[tuple[str, bytes]], names: deque[str]) -> float:
        """Sends these events, or puts their names back to send them in smaller batches. Returns the pause."""
        try:
            answer = self._post(b'{"events":[%b]}' % b",".join(event for _, event in batch))
        except NoAnswer as error:
            return self._pause(str(error))
        if len(answer.results) == len(batch):
            limited = self._settle(batch, answer.results)
            self._strangers = 0
            self._most = min(_MOST, self._most * 2)
            if limited:
                return self._pause("some events cannot be stored at the moment", answer)
            self._failures = 0
        elif answer.status in {401, 403} and answer.is_own:
            raise KeyRefused(f"{answer.status} {answer.told.get('code')}: {answer.told.get('detail')}")
        elif not self._is_of_events(answer):
            return self._pause(f"status {answer.status}", answer)
        elif len(batch) > 1:  # to find the event at fault
            self._most = len(batch) // 2
            names.extendleft(name for name, _ in reversed(batch))
        elif answer.is_own:
            self._refuse(*batch[0], answer.told)
        else:
            self.queue.hold(batch[0][0])
            self._strangers += 1
            if self._strangers >= _STRANGERS:
                return self._pause(f"status {answer.status}, not of ingestd", answer)
        return 0.0

    def _take(self, names: deque[str]) -> list[tuple[str, bytes]]:
        """The oldest events for a request, with their names."""
        batch: list[tuple[str, bytes]] = []
        size = 0
        while names and len(batch) < self._most:
            event = self.queue.read(names[0])
            if event is not None:
                size += len(event) + 1
                if batch and size > _LARGEST:
                    break
                batch.append((names[0], event))
            names.popleft()
        return batch

    def _post(self, body: bytes) -> Reply:
        return self._transport.post(body, {
            "Authorization": f"Bearer {self._key}", "Content-Type": "application/json",
            "x-signature": hmac.new(self._secret, body, hashlib.sha256).hexdigest(),
        })  # fmt: skip

    @staticmethod
    def _is_of_events(answer: Reply) -> bool:
        """Whether other events could have another answer: the body is refused, or a firewall has answered."""
        if answer.is_own:
            return answer.status in {400, 413}
        return answer.status == 200 or (400 <= answer.status < 500 and answer.status not in {408, 429})

    def _settle(self, batch: list[tuple[str, bytes]], results: list[dict[str, Any]]) -> bool:
        """Does with each event what its result says. Returns whether ingestd asks to wait."""
        limited = False
        for (name, event), result in zip(batch, results, strict=True):
            status = result.get("status")
            if status == 200:
                self.queue.remove(name)
            elif status in {429, 503}:
                limited = True
            elif status == 500 and name > f"{time.time_ns() // 1000 - _GIVEN_UP:016}":
                self.queue.hold(name)
            else:
                self._refuse(name, event, result)
        return limited

    def _refuse(self, name: str, event: bytes, problem: dict[str, Any]) -> None:
        self.queue.remove(name)
        read: dict[str, Any] = {}
        with suppress(ValueError):  # a power cut has spoilt the file
            read = json.loads(event)
        if self._on_refused is None:
            _log.warning("ingestd refused %s %s: %s", read.get("key", "identify"), read.get("messageId"), problem)
            return
        try:
            self._on_refused(read, problem)
        except Exception:  # noqa: BLE001 - the fault of a caller's function stops no other event
            _log.exception("on_refused has failed")

    def _pause(self, why: str, answer: Reply | None = None) -> float:
        """The seconds of the next pause: what ingestd asks for, or else more after each failure."""
        if not self._failures:
            _log.warning("ingestd takes no events (%s); they wait in the queue", why)
        self._failures += 1
        asked = answer.asks_for if answer is not None else 0.0
        wait = asked if asked > 0 else 0.5 * 2 ** min(self._failures - 1, 7)
        return min(_LONGEST_PAUSE, wait) * (1 + random.random() / 2)  # noqa: S311 - no secret
