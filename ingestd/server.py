"""The one place that wires: configuration, plugins, back end, pipeline, consumers, listeners."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

from prometheus_client import CollectorRegistry
from tornado.httpserver import HTTPServer

from . import __version__, file_limits
from .activation import EVENTS, OPERATORS, inherited_sockets
from .apart import ApartJournal, Ownership
from .backend import Backend
from .binding import bind
from .config import Config
from .consumers import Consumers
from .delivery import SinkConsumer, make_sink_consumer, sink_statuses
from .errors import ConfigError, IngestdError, Unavailable
from .findings import Finding
from .hooks import HookFailure
from .http.app import Ingest
from .http.connections import Connections
from .http.ops import make_ops_app
from .http.peers import STORED_FORMS
from .http.servers import SERVERS, IngestListener
from .journal import Journal
from .loader import Plugins
from .metrics import Metrics
from .metrics.loop_delay import watch_loop_delay
from .notify import Notifier
from .options import Address
from .pipeline import Pipeline
from .retention import Retention
from .store import Store
from .validation import Validator

__all__ = ["Backends", "Server", "TaskDied", "make_sinks", "open_backends", "tune_the_interpreter"]

log = logging.getLogger("ingestd.server")

_TO_CLOSE = 30.0  # seconds a stop may take beside what it waits for


class TaskDied(IngestdError):
    """A task that must never end has ended; the daemon stops rather than go on without it."""


class Backends:
    """The store and the journal in force, which may be one back end or two."""

    def __init__(self, config: Config, plugins: Plugins) -> None:
        backend = _make_backend("store.url", config.store.url, config, plugins)
        self._all = [backend]
        self.store: Store = backend.store
        self.journal: Journal = backend.journal
        self.ownership: Ownership | None = None
        """Of a state that several daemons can reach, each with a journal elsewhere."""
        if config.journal.url is not None and config.journal.url != config.store.url:
            apart = _make_backend("journal.url", config.journal.url, config, plugins)
            if apart.store.distant:
                raise ConfigError(
                    f"{config.place('journal.url')}: several daemons can reach a journal there, so what they remember"
                    " must be with it; leave [journal] url out, and give [store] url its value"
                )
            self._all.append(apart)
            self.journal = ApartJournal(apart.journal, apart.store, self.store)
            if self.store.distant:
                self.ownership = Ownership(self.store, apart.store)

    async def open(self, *, serving: bool) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for backend in self._all:
                await backend.open(serving=serving)
                stack.push_async_callback(backend.close)
            if serving and self.ownership is not None:
                await self.ownership.take()
            stack.pop_all()  # all are open, and stay so

    async def close(self) -> None:
        if self.ownership is not None:
            with contextlib.suppress(Unavailable):  # then the next one waits until we have been silent for long enough
                await self.ownership.release()
        for backend in self._all:
            await backend.close()

    async def settle(self) -> None:
        """For a command that must see all there is: have the journal take what a killed daemon has left noted."""
        if isinstance(self.journal, ApartJournal):
            await self.journal.settle()

    def must_be_shared(self, config: Config) -> None:
        """Raises `ConfigError` unless several daemons can have them at once."""
        cure = "let [store] url be redis://HOST and leave [journal] url out (docs/redis.md), or serve without --shared"
        for option, alone in (("store.url", not self.store.distant), ("journal.url", len(self._all) > 1)):
            if alone:
                raise ConfigError(
                    f"{config.place(option)}: only one daemon can have it, and --shared is for several; {cure}"
                )

    def problem(self) -> str | None:
        return next((problem for backend in self._all if (problem := backend.problem())), None)

    async def describe(self) -> list[Finding]:
        return [finding for backend in self._all for finding in await backend.describe()]


def _make_backend(option: str, url: str, config: Config, plugins: Plugins) -> Backend:
    scheme = url.partition(":")[0]
    try:
        return plugins.stores[scheme](url, config.base)
    except ConfigError as error:
        raise ConfigError(f"{config.place(option)}: {error}") from error


@contextlib.asynccontextmanager
async def open_backends(config: Config, plugins: Plugins) -> AsyncIterator[Backends]:
    """The back ends as a command opens them, also beside a running daemon."""
    backends = Backends(config, plugins)
    await backends.open(serving=False)
    try:
        yield backends
    finally:
        await backends.close()


def make_sinks(config: Config, plugins: Plugins, keys: Collection[str]) -> list[SinkConsumer]:
    """A consumer for each `[sinks.NAME]`; `keys` are the event keys there are. Raises `ConfigError`."""
    return [
        make_sink_consumer(name, table, plugins.sinks[table["type"]], config, keys)
        for name, table in config.sink_tables.items()
    ]


class Server:
    """The daemon: `await Server(config, plugins).run()` serves until told to stop.

    It is what plugins get as `Daemon`.
    """

    def __init__(self, config: Config, plugins: Plugins, *, shared: bool = False) -> None:
        """`shared`: others serve the same shop, from the same store. Raises `ConfigError`."""
        self._config = config
        self._plugins = plugins
        self.notifier = Notifier()
        self._metrics = Metrics()
        self.registry: CollectorRegistry = self._metrics.registry
        self._validator = Validator.load(config.schemas.directory)
        self._sinks = make_sinks(config, plugins, self._validator.keys)
        self._backends = Backends(config, plugins)
        if shared:
            self._backends.must_be_shared(config)
        self.store = self._backends.store
        self.journal = self._backends.journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Future[None] | None = None

    def plugin(self, name: str) -> object | None:
        return self._plugins.manager.get_plugin(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._died(task.get_name(), error or RuntimeError("ended by itself"))

    def _died(self, name: str, error: BaseException) -> None:
        log.critical("the task %s ended, so the daemon stops", name, exc_info=error)
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_exception(TaskDied(f"the task {name} ended: {error!r}"))

    def stop(self) -> None:
        """Stop as SIGTERM does."""
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`. Raises `ConfigError`, `OSError`, `TaskDied`."""
        loop = asyncio.get_running_loop()
        self._stopping = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self._serve(self._stopping)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            self.notifier.close()

    async def _serve(self, stopping: asyncio.Future[None]) -> None:
        config = self._config
        file_limits.raise_limit(file_limits.needed(config.http.max_connections))
        inherited = inherited_sockets()
        async with contextlib.AsyncExitStack() as stack:
            async with self.notifier.patience("starting: opening the store"):
                await self._backends.open(serving=True)
            stack.push_async_callback(self._backends.close)
            stack.push_async_callback(self._cancel_tasks)
            if self._backends.ownership is not None:
                self.watch(self._backends.ownership.keep(), name="ownership of the state")
            self.watch(watch_loop_delay(self._metrics.loop_delay.observe), name="delay of the loop")
            stack.push_async_callback(self._shut_plugins_down)  # first, since of several one may not start
            await self._start_plugins()
            consumers = Consumers(self.journal, self.store, [*self._plugins.consumers, *self._sinks], died=self._died)
            self._metrics.show_consumers(consumers.statuses)
            self._metrics.show_sinks(sink_statuses(consumers, self._sinks))
            await consumers.start()
            stack.push_async_callback(consumers.stop, config.http.shutdown_timeout)
            pipeline = Pipeline(
                self._plugins.hooks, self._validator, self.store, self.journal, self._metrics,
                max_waiting=config.http.max_waiting, max_body=int(config.http.max_body),
                stored_address=STORED_FORMS[config.http.store_address],
            )  # fmt: skip
            retention = Retention(self.journal, config.journal, consumers, refuse=pipeline.refuse)
            await retention.start()
            self._metrics.show_journal(retention)
            self.watch(retention.run(), name="retention")
            self._metrics.store_up.set_function(lambda: not (self._backends.problem() or retention.problem))
            ingest = Ingest(pipeline, config.http, config.logs, self._metrics)
            ops = HTTPServer(make_ops_app(self.registry, lambda: self._problem(ingest, retention)))
            _listen(ops, config.ops.listen, "operators", inherited.get(OPERATORS))
            stack.push_async_callback(ops.close_all_connections)
            stack.callback(ops.stop)
            connections = Connections(config.http, self._metrics, ingest.refusal)
            public = SERVERS[config.http.server](ingest, config.http, connections)
            self.watch(connections.watch(), name="http: limits of time")
            _listen(public, config.http.listen, "events", inherited.get(EVENTS))
            stack.push_async_callback(self._drain, public, ingest)
            tune_the_interpreter()
            self.notifier.ready("serving")
            self.watch(self.notifier.beat(self._describe(ingest, retention)), name="beat for systemd")
            stack.callback(self.notifier.stopping, "shutting down", 2 * config.http.shutdown_timeout + _TO_CLOSE)
            log.info("ready: ingestd %s, %d event keys", __version__, len(self._validator.keys))
            await stopping
        log.info("stopped")

    def _problem(self, ingest: Ingest, retention: Retention) -> str | None:
        return "shutting down" if ingest.draining else self._backends.problem() or retention.problem

    def _describe(self, ingest: Ingest, retention: Retention) -> Callable[[float], str]:
        """What an operator sees of the daemon in `systemctl status`."""
        before = 0.0

        def describe(seconds: float) -> str:
            nonlocal before
            accepted = self._metrics.accepted()
            rate, before = (accepted - before) / seconds, accepted
            problem = self._problem(ingest, retention)
            state = "serving" if problem is None else f"not ready: {problem}"
            sinks = f"{len(self._sinks)} sink{'s' * (len(self._sinks) != 1)}"
            return f"{state}: {sinks}, {rate:.0f} events/s"

        return describe

    async def _drain(self, public: IngestListener, ingest: Ingest) -> None:
        """Answer what was begun, within the limit; nothing new is accepted."""
        log.info("shutting down: answering %d open requests", len(ingest.active))
        public.stop()
        unanswered = await ingest.drain(self._config.http.shutdown_timeout)
        if unanswered:
            log.warning("shutting down: %d requests were cut off unanswered", unanswered)
        await public.close_all_connections()
        ingest.access.end_second()

    async def _start_plugins(self) -> None:
        try:
            await self._plugins.hooks.startup(self)
        except HookFailure as failure:
            cause = failure.__cause__
            log.error("%s", failure, exc_info=cause)  # noqa: TRY400 - the traceback is that of the plugin
            reason = f"{failure}: {cause!r}"
            # A file or a network may come back; anything else is a plugin to mend or to leave out.
            raise (Unavailable(reason) if isinstance(cause, OSError) else ConfigError(reason)) from failure

    async def _shut_plugins_down(self) -> None:
        for failure in await self._plugins.hooks.shutdown():
            log.error("%s", failure, exc_info=failure.__cause__)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def tune_the_interpreter() -> None:
    """Settings of Python that pay for a loop that is busy answering, with threads that wait for the disk.

    The garbage collector looks, seldom, at what requests leave (almost all is freed at once by reference
    counts) and never again at what start-up made. A thread that comes back from the disk gets its turn
    after half a millisecond instead of five: answers wait for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    sys.setswitchinterval(0.0005)


def _listen(
    server: HTTPServer | IngestListener, address: Address, what: str, inherited: list[socket.socket] | None
) -> None:
    sockets = inherited or bind(address)
    server.add_sockets(sockets)
    for sock in sockets:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if sock.family == socket.AF_INET6 else host
        log.info("listening for %s on http://%s:%d%s", what, shown, port, ", a socket of systemd" if inherited else "")
