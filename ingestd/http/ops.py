"""The operators' listener: /livez, /readyz, /metrics, and the routes of extensions.

It must not be public.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from tornado.web import Application, RequestHandler

from ingestd.config import OpsOptions
from ingestd.support.addresses import ascii_domain, ip_address

from .operators import OpsRoute

__all__ = ["Exposition", "ForBrowsers", "OwnHosts", "make_ops_app"]

log = logging.getLogger("ingestd.http")

_HOST = re.compile(r"(\[[^\[\]]*\]|[^:]*)(?::[0-9]*)?")
_LONGEST = 253  # characters of a host in a message
_SILENCE = 60.0  # seconds between two log lines


class OwnHosts:
    """The hosts that the listener answers to, so that no page of another site can read it.

    They are addresses, localhost, names below it, the host of `[ops] listen`, and `[ops] allowed_hosts`. A browser lets
    a page read answers of the page's own host, and by DNS rebinding a site gives its host the address of this listener.
    The request still names that host.
    """

    def __init__(self, options: OpsOptions) -> None:
        self._silent_until = float("-inf")
        self.apply_options(options)

    def apply_options(self, options: OpsOptions) -> None:
        """Answer to the hosts of these options from now on."""
        self._any = "*" in options.allowed_hosts
        own = {"localhost", ascii_domain(options.listen.host).removesuffix(".")}
        self._names = own | {name for name in options.allowed_hosts if not name.startswith("*")}
        self._endings = (".localhost", *(name[1:] for name in options.allowed_hosts if name.startswith("*.")))

    def refusal(self, host: str) -> str | None:
        """The reason for refusing this Host header, or None. An empty one is accepted: browsers always send a host."""
        if self._any or not host or self._is_own(host):
            return None
        shown = host[:_LONGEST]
        reason = (
            f"The operators' listener does not answer to the host {shown!r}. Add its name to [ops] allowed_hosts,"
            " or ask by an IP address or as localhost."
        )
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            log.warning("a request was answered 421: %s", reason)
        return reason

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().removesuffix(".")
        # An address is not looked up, so nobody can rebind it.
        return name in self._names or name.endswith(self._endings) or ip_address(name) is not None


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


class Exposition:
    """Renders a registry on its own thread, one rendering at a time.

    Scrapes that arrive during a rendering share the next one. So no scrape gets numbers from before its arrival, and
    many simultaneous scrapes cost two renderings.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Otherwise each counter would have a second sample, the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library declares no types here
        self._registry = registry
        # Not the loop's default threads: all of them may be waiting for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._current: asyncio.Future[bytes] | None = None
        self._next: asyncio.Future[bytes] | None = None

    async def render(self) -> bytes:
        """Render the present values. An exception of a collector is raised."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._current))
        return await asyncio.shield(self._next)  # a cancelled scrape must not cancel it for the others

    async def _after(self, current: asyncio.Future[bytes] | None) -> bytes:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(self._thread, generate_latest, self._registry)


class MetricsHandler(OpsHandler):
    """The metrics in Prometheus' text format alone. Every scraper reads it, and another costs half as much again."""

    def initialize(self, exposition: Exposition) -> None:
        self.exposition = exposition

    async def get(self) -> None:
        text = await self.exposition.render()
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
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
