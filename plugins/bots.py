"""Drops or marks events of crawlers, which it recognises by their user agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError
from ingestd.api.events import Event, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.options import Options as BaseOptions

from .crawler_list import CrawlerList, missing_packages

__all__ = ["BotsPlugin"]

_Text = Annotated[str, Meta(min_length=1)]


class BotsPlugin:
    """Off unless an action is given. Only then does it have the hook `prepare`, so it slows no event while off."""

    class Options(BaseOptions):
        action: Literal["drop", "mark"] | None = None
        allow: tuple[_Text, ...] = ("okhttp/",)
        deny: tuple[_Text, ...] = ()
        include_signed: bool = False

    def __init__(self, options: Options) -> None:
        self._crawlers: CrawlerList | None = None
        self._count: Callable[[str], None] = _ignore
        if options.action is None:
            return
        if missing := missing_packages():
            raise ConfigError(
                f"plugins.bots.action: needs {' and '.join(missing)}, not installed:"
                " pip install '.[bots]' in ingestd's source"
            )
        self._crawlers = CrawlerList(options.allow, options.deny)
        self.prepare = hookimpl(
            self._make_prepare(options.action, self._crawlers, include_signed=options.include_signed)
        )

    def _make_prepare(
        self, action: Literal["drop", "mark"], crawlers: CrawlerList, *, include_signed: bool
    ) -> Callable[[Event, Request], str | None]:
        def prepare(event: Event, request: Request) -> str | None:
            if event.signed and not include_signed:  # a backend's user agent names its HTTP library
                return None
            name = crawlers.find_name(_user_agent(event, request))
            if name is None:
                return None
            self._count(action)
            if action == "drop":
                return f"the crawler {name}"
            event.context["bot"] = name
            return None

        return prepare

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        from prometheus_client import Counter  # here, so that commands, which count nothing, start sooner

        events = Counter(
            "ingestd_bots_events", "Events and identify requests of crawlers.", ["action"], registry=daemon.registry
        )
        counts = {action: events.labels(action).inc for action in ("drop", "mark")}
        self._count = lambda action: counts[action]()
        self._load()

    @hookimpl
    def take_over(self, predecessor: BotsPlugin) -> None:
        self._count = predecessor._count
        self._load()

    def _load(self) -> None:
        if self._crawlers is not None:
            self._crawlers.load()


def _user_agent(event: Event, request: Request) -> str:
    """The visitor's user agent. A backend that relays an event may put it into the context."""
    if not event.relayed:
        return request.headers.get("User-Agent", "")
    stated = event.context.get("userAgent")
    return stated if isinstance(stated, str) else ""


def _ignore(_: str) -> None:
    """Commands count nothing."""
