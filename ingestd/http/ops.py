"""The operators' listener: /livez, /readyz and /metrics. It is never public."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from tornado.web import Application, RequestHandler

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
    def initialize(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def get(self) -> None:
        encoder, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", content_type)
        self.finish(encoder(self.registry))


def make_ops_app(registry: CollectorRegistry, problem: Callable[[], str | None]) -> Application:
    """`problem` tells why the daemon is not ready, or None."""
    return Application(
        [
            ("/livez", LivezHandler),
            ("/readyz", ReadyzHandler, {"problem": problem}),
            ("/metrics", MetricsHandler, {"registry": registry}),
        ],
        log_function=lambda handler: None,  # scrapes and probes are no news
    )
