"""The operators' listener: /livez, /readyz and /metrics. It is never public."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from tornado.web import Application, RequestHandler

from ..metrics.exposition import CONTENT_TYPE, Exposition

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


def make_ops_app(registry: CollectorRegistry, problem: Callable[[], str | None]) -> Application:
    """`problem` tells why the daemon is not ready, or None."""
    return Application(
        [
            ("/livez", LivezHandler),
            ("/readyz", ReadyzHandler, {"problem": problem}),
            ("/metrics", MetricsHandler, {"exposition": Exposition(registry)}),
        ],
        compress_response=True,  # for who asks for it, as Prometheus does
        log_function=lambda handler: None,  # scrapes and probes are no news
    )
