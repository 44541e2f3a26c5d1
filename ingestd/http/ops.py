"""The operators' listener: /livez, /readyz, /metrics, and a page with what it shows. It is never public."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from tornado.web import Application, RequestHandler

from ..metrics.exposition import CONTENT_TYPE, Exposition
from ..page import page

__all__ = ["make_ops_app"]


class LivezHandler(RequestHandler):
    """200 as long as the event loop answers."""

    def get(self) -> None:
        self.finish("ok\n")


class ReadyzHandler(RequestHandler):
    """200 when events can be stored, else 503 and why not."""

    def initialize(self, problem: Callable[[], str | None]) -> None:
        self.problem = problem

    def get(self) -> None:
        reason = self.problem()
        if reason is not None:
            self.set_status(503)
        self.finish(f"{reason or 'ok'}\n")


class MetricsHandler(RequestHandler):
    """Always in Prometheus' text format: every scraper reads it, and another would cost half as much again."""

    def initialize(self, exposition: Exposition) -> None:
        self.exposition = exposition

    async def get(self) -> None:
        text = await self.exposition.render()
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)  # not awaited: it raises for who has gone

    def compute_etag(self) -> None:
        """No two are the same."""


class _ForBrowsers(RequestHandler):
    """Whatever a browser makes of other sites, it keeps what is here to itself."""

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("X-Frame-Options", "DENY")


class PageHandler(_ForBrowsers):
    """The same for everyone; what it shows it fetches from /status.json."""

    async def get(self) -> None:
        made = await asyncio.get_running_loop().run_in_executor(None, page)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", made.policy)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(made.packed)
        else:
            self.finish(made.html)


class StatusHandler(_ForBrowsers):
    """What the page shows, for it and for scripts."""

    def initialize(self, status: Callable[[], Awaitable[bytes]]) -> None:
        self.status = status

    async def get(self) -> None:
        body = await self.status()
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(body)

    def compute_etag(self) -> None:
        """No two are the same."""


def make_ops_app(
    registry: CollectorRegistry, problem: Callable[[], str | None], status: Callable[[], Awaitable[bytes]]
) -> Application:
    """`problem` tells why the daemon is not ready, or None; `status` makes the JSON that the page shows."""
    return Application(
        [
            ("/", PageHandler),
            ("/status.json", StatusHandler, {"status": status}),
            ("/livez", LivezHandler),
            ("/readyz", ReadyzHandler, {"problem": problem}),
            ("/metrics", MetricsHandler, {"exposition": Exposition(registry)}),
        ],
        compress_response=True,  # for who asks for it, as Prometheus does
        log_function=lambda handler: None,  # scrapes and probes are no news
    )
