"""The functions that a backend calls."""

from __future__ import annotations

import atexit
import json
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from ingestd.support.ids import named_uuid
from ingestd.support.unusable_ids import UnusableIds

from .folder import QueueFolder
from .sender import OnRefused, Sender
from .transport import MakeHttp, Transport

__all__ = ["Client"]

_NOBODY = UnusableIds()


class Client:
    """Sends the events of a backend. One client serves all threads, and processes forked from this one."""

    def __init__(
        self,
        host: str,
        key: str,
        secret: str,
        tenant: str,
        *,
        folder: str | Path = "ingestd-queue",
        most: int = 100_000,
        interval: float = 1.0,
        timeout: float = 20.0,
        on_refused: OnRefused | None = None,
        http: MakeHttp | None = None,
    ) -> None:
        """`host` is the address of ingestd, and `key` the id of a server key of `tenant`.

        Events wait in `folder`, at most about `most` of them. An event waits `interval` seconds for others. A request
        has `timeout` seconds. `on_refused` is called with an event that ingestd refuses and the problem. Without it,
        both are logged. `http` makes an `httpx.Client` in each process that sends, to be used instead of the standard
        library. ValueError: the host is no address. OSError: the folder cannot be made.
        """

        def start() -> Sender:
            queue = QueueFolder(Path(folder), most)
            transport = Transport(host, timeout, http)
            return Sender(queue, transport, key, secret, interval=interval, on_refused=on_refused)

        self._tenant = tenant
        self._start = start
        self._sender = start()
        atexit.register(self.close)

    def track(
        self,
        key: str,
        data: dict[str, Any] | None = None,
        *,
        anonymous_id: str | None = None,
        user_id: str | int | None = None,
        **fields: Any,
    ) -> str:
        """Keeps an event on disk, to be sent soon, and returns its `messageId`.

        `anonymous_id` is the visitor, from the browser's cookie. Without it the visitor is derived from the user, and
        without a user it is a new one. `fields` are further members of the event, such as `timestamp` (a datetime with
        a zone, or text) and `context`. QueueFull: too many events wait. ValueError or TypeError: JSON cannot have a
        value. OSError: the disk is full.
        """
        return self._add({"key": key, "data": data or {}}, anonymous_id, user_id, fields)

    def identify(
        self,
        user_id: str | int | None,
        traits: dict[str, Any] | None = None,
        *,
        anonymous_id: str | None = None,
        **fields: Any,
    ) -> str:
        """Links the visitor to the user, and stores traits. Everything else is as in `track`."""
        return self._add({"type": "identify", "traits": traits or {}}, anonymous_id, user_id, fields)

    def _add(
        self, event: dict[str, Any], anonymous_id: str | None, user_id: str | int | None, fields: dict[str, Any]
    ) -> str:
        user = None if user_id is None else str(user_id)
        event["anonymousId"] = anonymous_id or self._visitor_of(user)
        if user is not None:
            event["userId"] = user
        event = {"messageId": str(uuid.uuid4()), "timestamp": datetime.now(UTC), **event, **fields}
        if isinstance(event["timestamp"], datetime) and event["timestamp"].tzinfo is None:
            raise ValueError("timestamp has no time zone")
        text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        sender = self._current_sender()
        sender.queue.add(text.encode())
        sender.wake()
        return str(event["messageId"])

    def _visitor_of(self, user: str | None) -> str:
        """As ingestd derives it for requests of Segment's SDKs, so both have one visitor of a user."""
        if user is None or user in _NOBODY:
            return str(uuid.uuid4())
        return named_uuid("visitor of user", self._tenant, user)

    def flush(self, timeout: float = 10.0) -> bool:
        """Sends what waits. False: some of it still waits after `timeout` seconds. KeyRefused: the key is refused."""
        deadline = time.monotonic() + timeout
        sender = self._current_sender()
        newest = sender.queue.newest()
        sender.wake(hurries=True)
        pause = 0.01
        while sender.queue.has_until(newest):
            if sender.refusal is not None:
                raise sender.refusal
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)  # a look at a long queue takes time
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Sends once more what waits, for at most `timeout` seconds. The end of the process calls it.

        What cannot be sent stays on disk for the next client with the same folder.
        """
        atexit.unregister(self.close)
        if self._sender.is_alive:
            self._sender.close(timeout)

    def _current_sender(self) -> Sender:
        if not self._sender.is_alive:
            self._sender = self._start()
        return self._sender


def _plain(value: object) -> object:
    """JSON of the values that orders of databases have."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
