"""The HTTP endpoints with a real socket and a real store, in the process of the test, with plugins of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pluggy
import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.testing import bind_unused_port

from ingestd.api import hookimpl, hookspecs
from ingestd.api.events import Event, Principal, Record, Request
from ingestd.api.intake import Intake
from ingestd.api.journal import Journal
from ingestd.config import HttpOptions, LogsOptions
from ingestd.hooks.caller import Hooks, register_all
from ingestd.http.app import BASE_PATH, Ingest, MakeServer
from ingestd.http.connection_limits import Connections
from ingestd.http.server.server import FastServer
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.outcomes import Outcomes
from ingestd.pipeline.processor import Processors
from ingestd.plugins.session import SessionPlugin
from ingestd.plugins.tornado_server.server import IngestServer
from ingestd.scheduling.room import Backpressure
from ingestd.validation.validator import Validator
from tests.support.backends import sqlite_daemon

__all__ = ["PAGE_VIEW", "Door", "MakeDoor", "Slow", "door", "open_door"]

_SERVERS: dict[str, MakeServer] = {"fast": FastServer, "tornado": IngestServer}
PAGE_VIEW = {"key": "Page View", "anonymousId": "visitor", "data": {}}


class Everyone:
    """Authenticates everybody as the tenant in the credential."""

    @hookimpl
    def authenticate(self, request: Request) -> Principal | None:
        return Principal(request.bearer() or "shop", "key")


class Door(NamedTuple):
    ingest: Ingest
    connections: Connections
    started: float
    journal: Journal
    metrics: Metrics
    port: int

    def at(self, seconds: float) -> None:
        """Enforces the timeouts as if so many seconds had passed since the start."""
        self.connections.look(self.started + seconds)

    async def post(self, body: Any = PAGE_VIEW, path: str = "/track", **headers: str) -> HTTPResponse:
        return await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{self.port}{BASE_PATH}{path}",
            method="POST", body=json.dumps(body), headers=headers, raise_error=False,
        )  # fmt: skip

    async def fetch(
        self, path: str, body: bytes | None = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> HTTPResponse:
        """Request any path of the listener."""
        return await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{self.port}{path}",
            method=method, body=body, headers=dict(headers or {}), raise_error=False, allow_nonstandard_methods=True,
        )  # fmt: skip

    async def records(self) -> list[dict[str, Any]]:
        records: Sequence[Record] = await self.journal.read(0, 1000)
        return [record.decode() for record in records]

    def counted(self, outcome: str, key: str = "Page View") -> float | None:
        return self.metrics.registry.get_sample_value(
            "ingestd_events_total", {"endpoint": "track", "key": key, "outcome": outcome}
        )


class MakeDoor(Protocol):
    """`open_door` with a certain HTTP server."""

    def __call__(
        self, folder: Path, *plugins: object, options: HttpOptions | None = None
    ) -> AbstractAsyncContextManager[Door]: ...


@asynccontextmanager
async def open_door(
    folder: Path, *plugins: object, server: str, options: HttpOptions | None = None, schemas: Path | None = None
) -> AsyncIterator[Door]:
    options = options or HttpOptions()
    manager = pluggy.PluginManager(hookspecs.HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    for plugin in [SessionPlugin(SessionPlugin.Options()), Everyone(), *plugins]:
        manager.register(plugin, type(plugin).__name__)
    async with sqlite_daemon(folder) as daemon:
        metrics = Metrics()
        intakes: list[Intake] = []
        register_all(manager, "register_intakes", intakes.append)
        validator = Validator.load(schemas)
        hooks = Hooks(manager)
        backpressure = Backpressure(options.max_waiting, int(options.max_buffered))
        pipeline = Pipeline(
            hooks, validator, Processors(hooks, daemon.store, daemon.partitions, [backpressure]),
            Outcomes(metrics), options, unusable_ids=daemon.unusable_ids, intakes=intakes,
        )  # fmt: skip
        ingest = Ingest(pipeline, options, LogsOptions(access_errors=False), metrics, intakes)
        connections = Connections(options, metrics, ingest.refusal)
        public = _SERVERS[server](ingest.start_request, options, connections)
        sock, port = bind_unused_port()
        public.add_sockets([sock])
        try:
            yield Door(ingest, connections, connections.now, daemon.partitions[0].journal, metrics, port)
        finally:
            public.stop()
            await public.close_all_connections()


class Slow:
    """Holds events until `go` is set."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()

    @hookimpl
    async def enrich(self, event: Event) -> None:
        self.arrived.set()
        await self.go.wait()


@pytest.fixture
def door(http_server: str) -> MakeDoor:
    return partial(open_door, server=http_server)
