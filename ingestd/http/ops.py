"""The operators' listener: /livez, /readyz, /metrics, /openapi.json, and the dashboard with its data.

It must not be public.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from tornado.http1connection import HTTP1Connection
from tornado.web import Application, RequestHandler

from ingestd.api.errors import BadRequest, Forbidden, Refused, Unavailable
from ingestd.api.outcomes import Outcome
from ingestd.observability.dashboard.page import page
from ingestd.observability.live import LONGEST_ID, ArrivalFilter, LiveEvents, Viewer
from ingestd.observability.metrics.exposition import CONTENT_TYPE, Exposition

from .allowed_hosts import OwnHosts

__all__ = ["ForPage", "OpsRoute", "make_ops_app"]


OpsRoute = tuple[str, type[RequestHandler], dict[str, Any]]
"""The path of a handler, and the arguments of its `initialize`."""

_TO_TAKE = 30.0  # seconds in which a viewer of live events must take a message


class _OpsHandler(RequestHandler):
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


class NothingHandler(_OpsHandler):
    """404: nothing is at the path."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.send_error(404)


class LivezHandler(_OpsHandler):
    """200 as long as the event loop runs."""

    def get(self) -> None:
        self.finish("ok\n")


class ReadyzHandler(_OpsHandler):
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


class MetricsHandler(_OpsHandler):
    """The metrics in Prometheus' text format alone. Every scraper reads it, and another costs half as much again."""

    def initialize(self, exposition: Exposition) -> None:
        self.exposition = exposition

    async def get(self) -> None:
        text = await self.exposition.render()
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)  # not awaited: the future raises if the client has disconnected

    def compute_etag(self) -> None:
        """No ETag: no two answers are equal."""


class ForBrowsers(_OpsHandler):
    """Sets headers by which a browser keeps pages of other sites away from the answers."""

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("X-Frame-Options", "DENY")


class ForPage(ForBrowsers):
    """Data for this listener's page and for scripts. A page of another site could not read an answer, but its requests
    would take the turns and the places of viewers.
    """

    def prepare(self) -> None:
        super().prepare()
        if not self._finished and self._may_be_of_another_site:
            self.refuse(Forbidden("Browsers get this on the page at / alone. Scripts need no header."))

    @property
    def _may_be_of_another_site(self) -> bool:
        """Whether a page of another site may have made this request.

        No page can send a header of its own to another site without asking first, nor leave out or change the
        `User-Agent`. Browsers tell the site, but not to a listener without TLS that is not on loopback.
        """
        headers = self.request.headers
        if "X-Ingestd-Page" in headers:
            return False
        site = headers.get("Sec-Fetch-Site")
        if site is not None:
            return site not in {"none", "same-origin"}
        return "Origin" in headers or "Referer" in headers or headers.get("User-Agent", "").startswith("Mozilla/")

    def refuse(self, refused: Refused) -> None:
        """Answer with the reason as JSON."""
        self.set_status(refused.status)
        if refused.retry_after is not None:
            self.set_header("Retry-After", str(refused.retry_after))
        self.answer(msgspec.json.encode({"error": refused.detail}))

    def answer(self, body: bytes) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(body)  # not awaited: the future raises if the client has disconnected

    def compute_etag(self) -> None:
        """No ETag: no two answers are equal."""


class PageHandler(ForBrowsers):
    """The dashboard's HTML, the same for everyone. The page fetches its data from /status.json."""

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


class StatusHandler(ForPage):
    """The dashboard's data, for the page and for scripts."""

    def initialize(self, status: Callable[[Mapping[str, str]], Awaitable[bytes]]) -> None:
        self.status = status

    async def get(self) -> None:
        body = await self.status(
            {name: self.get_query_argument(name, strip=False) for name in self.request.query_arguments}
        )
        self.answer(body)


class EventsHandler(ForPage):
    """Live events, as server-sent events."""

    def initialize(self, live: LiveEvents) -> None:
        self.live = live
        self.viewer: Viewer | None = None

    async def head(self) -> None:
        if self._wanted() is not None and self._has_room():
            self._begin()
            await self.flush()  # else Tornado would state the length of a body

    async def get(self) -> None:
        wanted = self._wanted()
        if wanted is None or not self._has_room():
            return
        last_id = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        with self.live.view(wanted, last_id) as self.viewer:
            self._begin()
            while (message := await self.viewer.next_message()) is not None:
                if not await self._send(message, self.viewer):
                    return

    def on_connection_close(self) -> None:
        if self.viewer is not None:
            self.viewer.end()

    async def _send(self, message: bytes, viewer: Viewer) -> bool:
        """Send a message. False: the client has left, or takes nothing any more."""
        self.write(message)
        sent = asyncio.ensure_future(self.flush())
        await asyncio.wait([sent, viewer.ended], timeout=_TO_TAKE, return_when=asyncio.FIRST_COMPLETED)
        if sent.done() and sent.exception() is None:
            return True
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        connection.close()
        return False

    def _begin(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")

    def _has_room(self) -> bool:
        try:
            self.live.check_room()
        except Unavailable as refused:
            self.refuse(refused)
            return False
        return True

    def _wanted(self) -> ArrivalFilter | None:
        """The filter in the query, or None if the request is refused for it."""
        try:
            outcomes = frozenset(Outcome(name) for name in self.get_query_arguments("outcome") if name)
        except ValueError:
            self.refuse(BadRequest(f"outcome: expected one of {', '.join(each.value for each in Outcome)}"))
            return None
        kind = self.get_query_argument("type", "")
        if kind not in ("", "event", "identify"):
            self.refuse(BadRequest("type: expected event or identify"))
            return None
        person = self.get_query_argument("visitor", "", strip=False)[:LONGEST_ID] or None
        if person is not None and self.live.disclosure.level == "none":
            self.refuse(BadRequest('visitor: [ops] show_data is "none", so visitors cannot be looked up'))
            return None
        key = self.get_query_argument("key", None, strip=False)
        return ArrivalFilter(outcomes, kind == "identify" if kind else None, key, person)


class OpenApiHandler(ForBrowsers):
    """The OpenAPI document of the generation in force."""

    def initialize(self, openapi: Callable[[], bytes]) -> None:
        self.openapi = openapi

    async def get(self) -> None:
        document = await asyncio.get_running_loop().run_in_executor(None, self.openapi)
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-cache")
        self.finish(document)


def make_ops_app(
    registry: CollectorRegistry,
    problem: Callable[[], str | None],
    status: Callable[[Mapping[str, str]], Awaitable[bytes]],
    openapi: Callable[[], bytes],
    hosts: OwnHosts,
    *,
    remark: Callable[[], str | None] = lambda: None,
    live: LiveEvents,
    further: Sequence[OpsRoute] = (),
) -> Application:
    """Make the application.

    `problem` returns why the daemon is not ready, or None. `remark` returns what is wrong although it is ready.
    `status` makes the page's JSON. `openapi` makes the OpenAPI document, on another thread. `further` has the routes
    of other modules.
    """
    return Application(
        [
            ("/", PageHandler),
            (r"/status\.json/?", StatusHandler, {"status": status}),
            ("/events/?", EventsHandler, {"live": live}),
            ("/livez/?", LivezHandler),
            ("/readyz/?", ReadyzHandler, {"problem": problem, "remark": remark}),
            (r"/openapi\.json/?", OpenApiHandler, {"openapi": openapi}),
            ("/metrics/?", MetricsHandler, {"exposition": Exposition(registry)}),
            *further,
        ],
        default_handler_class=NothingHandler,
        hosts=hosts,
        compress_response=True,  # for clients that ask for it, as Prometheus does
        log_function=lambda handler: None,  # scrapes and probes are not worth a line
    )
