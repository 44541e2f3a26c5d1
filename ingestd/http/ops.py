"""The operators' listener: /livez, /readyz, /metrics, and the routes of extensions.

It must not be public.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from tornado.web import Application, RequestHandler

from ingestd.observability.metrics.exposition import CONTENT_TYPE, Exposition

from .allowed_hosts import OwnHosts
from .operators import OpsRoute

__all__ = ["ForBrowsers", "make_ops_app"]


class OpsHandler(RequestHandler):
    """Answers requests for the listener's hosts only, and HEAD wherever there is a GET."""

    def prepare(self) -> None:
        hosts: OwnHosts = self.settings["hosts"]
        refusal = hosts.refusal(self.request.headers.get("Host", ""))
        if refusal is not None:
            self.set_status(421)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.set_header("X-Content-Type-Options", "nosniff")
            self.finish(f"{refusal}\n")

    def get(self) -> Awaitable[None] | None:
        raise NotImplementedError

    def head(self) -> Awaitable[None] | None:
        return self.get()  # Tornado leaves the body out

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
        super().write_error(status_code, **kwargs)


class NothingHandler(OpsHandler):
    """404: nothing is at the path."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.send_error(404)


class LivezHandler(OpsHandler):
    """200 as long as the event loop runs."""

    def get(self) -> None:
        self.finish("ok\n")


class ReadyzHandler(OpsHandler):
    """200 while events can be stored, perhaps with a remark on partitions that cannot; else 503 and the reason."""

    def initialize(self, problem: Callable[[], str | None], remark: Callable[[], str | None]) -> None:
        self.problem = problem
        self.remark = remark

    def get(self) -> None:
        reason = self.problem()
        if reason is not None:
            self.set_status(503)
        remark = self.remark() if reason is None else None
        self.finish(f"{reason or 'ok'}{'' if remark is None else f', but {remark}'}\n")


class MetricsHandler(OpsHandler):
    """The metrics in Prometheus' text format alone. Every scraper reads it, and another costs half as much again."""

    def initialize(self, exposition: Exposition) -> None:
        self.exposition = exposition

    async def get(self) -> None:
        text = await self.exposition.render()
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)  # not awaited: the future raises if the client has disconnected

    def compute_etag(self) -> None:
        """No ETag: no two answers are equal."""


class ForBrowsers(OpsHandler):
    """Sets headers by which a browser keeps pages of other sites away from the answers."""

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("X-Frame-Options", "DENY")


def make_ops_app(
    registry: CollectorRegistry,
    problem: Callable[[], str | None],
    hosts: OwnHosts,
    *,
    remark: Callable[[], str | None] = lambda: None,
    further: Sequence[OpsRoute] = (),
) -> Application:
    """Make the application.

    `problem` returns why the daemon is not ready, or None. `remark` returns what is wrong although it is ready.
    `further` has the routes of extensions.
    """
    return Application(
        [
            ("/livez/?", LivezHandler),
            ("/readyz/?", ReadyzHandler, {"problem": problem, "remark": remark}),
            ("/metrics/?", MetricsHandler, {"exposition": Exposition(registry)}),
            *further,
        ],
        default_handler_class=NothingHandler,
        hosts=hosts,
        compress_response=True,  # for clients that ask for it, as Prometheus does
        log_function=lambda handler: None,  # scrapes and probes are not worth a line
    )
