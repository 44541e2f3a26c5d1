"""The public listener: the interface of a server for it, and the objects that its requests share."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from ingestd.api.errors import Refused
from ingestd.api.intake import Intake
from ingestd.config import HttpOptions, LogsOptions
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.outcomes import problem
from ingestd.scheduling.coroutines import RequestTasks
from ingestd.support.ids import time_uuid

from .access_log import AccessLog
from .client_connection import StartRequest, head_of
from .connection_limits import Connections
from .ingest import Exchange, headers_of
from .routes import BASE_PATH
from .settings import RequestSettings

__all__ = ["BASE_PATH", "HeldBack", "Ingest", "IngestListener", "MakeServer"]


class IngestListener(Protocol):
    """The interface of a server for the daemon. Callers need not know which one answers."""

    def apply_options(self, options: HttpOptions) -> None: ...
    def add_sockets(self, sockets: Iterable[socket.socket]) -> None: ...
    def accept_queued(self) -> None: ...
    def stop(self) -> None: ...
    async def close_all_connections(self) -> None: ...


MakeServer = Callable[[StartRequest, HttpOptions, Connections], IngestListener]

_HELD_BACK = 1.0  # seconds
_MOST_HELD_BACK = 1024  # answers, each with the headers of its request, even if the client has left


class HeldBack:
    """Answers that are sent a second late: their senders would send the next costly request at once.

    Beyond 1,024 answers, the oldest one is sent early.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.TimerHandle, Callable[[], None]]] = deque()
        self._over = False

    def add(self, send: Callable[[], None]) -> None:
        """Call `send` a second later, or as soon as `send_all` is called."""
        loop = asyncio.get_running_loop()
        if self._over:
            loop.call_soon(send)
            return
        self._waiting.append((loop.call_later(_HELD_BACK, self._send_oldest), send))
        if len(self._waiting) > _MOST_HELD_BACK:
            self._send_oldest()

    def send_all(self) -> None:
        """Hold no answer back any longer: the daemon is shutting down."""
        self._over = True
        while self._waiting:
            self._send_oldest()

    def _send_oldest(self) -> None:
        timer, send = self._waiting.popleft()
        timer.cancel()
        asyncio.get_running_loop().call_soon(send)


class Ingest:
    """The endpoints for events. A server calls `start_request` with its client for each request."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: HttpOptions,
        logs: LogsOptions,
        metrics: Metrics,
        intakes: Sequence[Intake] = (),
    ) -> None:
        self.metrics = metrics
        self.access = AccessLog(logs)
        self.settings = RequestSettings(pipeline, options, intakes)
        """The settings of requests that begin now. A request that has begun keeps its settings."""
        self.active: set[Exchange] = set()
        """Requests that have begun and have no answer yet."""
        self.tasks = RequestTasks()
        self.held_back = HeldBack()
        self.start_request = partial(Exchange, self)
        self.draining = False
        """Whether the daemon is shutting down. Each answer then ends its connection, with `Connection: close`."""

    def drain(self) -> None:
        """End each connection with its next answer, and hold none back."""
        self.draining = True
        self.held_back.send_all()

    def refusal(self, refused: Refused) -> bytes:
        """The whole answer to a connection without a readable request. Its CORS headers assume no `Origin`."""
        answer, request_id = problem(refused), time_uuid()
        self.access.answered(
            "-", None, answer.status, code=answer.code, seconds=0, size=0, peer="", request_id=request_id
        )  # fmt: skip
        own = [("X-Request-Id", request_id), ("Connection", "close")]
        return head_of(answer.status, [*self.settings.cors.headers({}), *headers_of(answer), *own]) + answer.body
