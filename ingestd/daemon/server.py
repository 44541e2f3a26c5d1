"""The daemon, which connects all parts: configuration, plugins, backend, pipeline, consumers and listeners."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from ingestd import __version__
from ingestd.api.backend import Partition
from ingestd.api.errors import ConfigError, IngestdError, Unavailable
from ingestd.config import Config, HttpOptions, load_config
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.delivery import sink_statuses
from ingestd.hooks.caller import HookFailure, register_all
from ingestd.hooks.loader import Plugins
from ingestd.http.app import Ingest, IngestListener, MakeServer
from ingestd.http.client_connection import StartRequest
from ingestd.http.connection_limits import Connections
from ingestd.http.operators import Operators, OperatorsPart, Shown
from ingestd.http.ops import OwnHosts, make_ops_app
from ingestd.http.server.server import FastServer
from ingestd.observability.logs import LogKeeper, configure_logs
from ingestd.observability.loop_holder import plugin_modules
from ingestd.observability.loop_monitor import LoopMonitor
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.outcomes import Outcomes
from ingestd.pipeline.processor import Processors
from ingestd.scheduling.demand import Demand
from ingestd.scheduling.room import Backpressure
from ingestd.storage.backends import Backends
from ingestd.storage.retentions import Retentions
from ingestd.storage.store_loss import LossRecovery
from ingestd.support.periodic import TIMING
from ingestd.support.unusable_ids import UnusableIds

from .clocks import Clocks
from .exit_codes import exit_code
from .forgotten import Forgotten
from .generation import Generation, first_generation
from .health import Health
from .listening import EVENTS, OPERATORS, inherited_sockets, listen, serving_operators
from .notifier import Notifier
from .process import files_needed, give_back_free_memory, raise_file_limit, tune_the_interpreter
from .reload import Reload
from .run_file import RunState, hold_run_file
from .shutdown import Shutdown
from .state_sizes import StateSizes
from .waits import Waits

__all__ = ["Server", "TaskDied", "serve"]

log = logging.getLogger("ingestd.server")

_TO_CLOSE = 30.0  # seconds that a shutdown may take in addition to its waits


class TaskDied(IngestdError):
    """A task that must never end has ended. The daemon stops rather than run without it."""


class Server:
    """The daemon: `await Server(config, plugins).run()` serves until it is asked to stop.

    Plugins get it as `Daemon`.
    """

    def __init__(self, config: Config, plugins: Plugins, *, read: Callable[[], Config], shared: bool = False) -> None:
        """`read` reads the configuration again. `shared`: other daemons serve the same shop from the same store.

        Raises `ConfigError`.
        """
        self._generation = first_generation(config, plugins)
        self._read = read
        self.notifier = Notifier()
        self._waits = Waits(self.notifier)
        self._metrics = Metrics()
        self.registry: CollectorRegistry = self._metrics.registry
        self._backends = Backends(config, plugins)
        if shared:
            self._backends.must_be_shared(config)
        self.store = self._backends.store
        self.partitions = self._backends.partitions
        self.of_tenant = self._backends.of_tenant
        self.all_of_tenant = self._backends.all_of_tenant
        self.unusable_ids = UnusableIds(config.ids.unusable)
        self._losses = [
            LossRecovery(each.store, partial(self._recover, each), partition=each.name, partitions=len(self.partitions))
            for each in self.partitions
        ]
        self._events_at = config.http.listen
        """The address for events. It is another one if the configuration asks for any port, or a socket is passed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop: Shutdown | None = None
        self._outcomes = Outcomes(self._metrics)
        self._operators: list[OperatorsPart] = []
        self.config_path = os.path.abspath(config.source)
        self._run_state = RunState(pid=os.getpid(), config=self.config_path)

    def plugin(self, name: str) -> object | None:
        return self._generation.plugins.manager.get_plugin(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._died(task.get_name(), error or RuntimeError("ended without an error"))

    def _died(self, name: str, error: BaseException) -> None:
        log.critical("the task %s ended, so the daemon stops", name, exc_info=error)
        if self._stop is not None:
            self._stop.fail(TaskDied(f"the task {name} ended: {error!r}"))

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. A second signal shortens the waits.

        Raises `ConfigError`, `OSError`, `TaskDied`.
        """
        loop = asyncio.get_running_loop()
        self._stop = Shutdown(self._tell_stopping)
        self._stop.start = asyncio.current_task()
        reload = asyncio.Event()
        handlers = {signal.SIGTERM: self._stop.request, signal.SIGINT: self._stop.request, signal.SIGHUP: reload.set}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_stop)  # called beside the loop's handler, and while the loop is held
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        try:
            await self._serve(self._stop, reload)
        except asyncio.CancelledError:
            if not self._stop.requested:
                raise
            await self._stop.wait()
            log.info("stopped before the start has ended")
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by default it would kill a daemon that is about to end
            self.notifier.close()

    def _asked_to_stop(self, number: int, frame: object) -> None:
        if self._stop is not None and self._stop.start is not None and self._waits.stopped_at is None:
            self._waits.stopped_at = time.monotonic()

    async def _serve(self, stop: Shutdown, reload: asyncio.Event) -> None:
        generation, metrics = self._generation, self._metrics
        config = generation.config
        raise_file_limit(files_needed(config.http.max_connections))
        inherited = inherited_sockets()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_kept(generation.plugins.manager.hook.make_log_keeper()))
            run_file = hold_run_file(self._run_state)
            stack.callback(run_file.release)
            async with self._waits.wait("starting: opening the store"):
                await self._backends.open(serving=True)
            stack.push_async_callback(self._backends.close)
            stack.push_async_callback(self._cancel_tasks)
            clocks = self._look_after_itself()
            stack.push_async_exit(
                partial(self._shut_plugins_down, stop)
            )  # before the start: one of several plugins may fail
            await self._start_plugins()
            backpressures = _backpressures(config.http, len(self.partitions))
            consumers = PartitionConsumers(
                self.partitions, [*generation.plugins.consumers, *generation.sinks],
                died=self._died, forced=stop.forced, give_way=backpressures[0].demand.give_way,
            )  # fmt: skip
            sizes = await self._measure_state(consumers)
            await consumers.start()
            stack.push_async_callback(self._stop_consumers, consumers)
            if len(self.partitions) > 1:
                self.watch(self._backends.follow_placements(), name="placements")
            self.watch(Forgotten(self.partitions, consumers, self._operators).follow(), name="erasures")
            retentions = sizes.journals = await self._measure_journals(consumers, backpressures)
            health = Health(self.partitions, self._losses, retentions, clocks.remark)
            metrics.store_up.set_function(health.able)
            pipeline = self._make_pipeline(generation, backpressures)
            ingest = Ingest(pipeline, config.http, config.logs, metrics, generation.plugins.intakes)
            problem = partial(self._problem, ingest, health)
            register_all(
                generation.plugins.manager, "register_routes",
                self._for_operators(problem, health, retentions, [each.demand for each in backpressures]),
            )  # fmt: skip
            show = partial(self._show, consumers, sizes)
            show(generation)
            hosts = OwnHosts(config.ops)
            ops = make_ops_app(
                self.registry, problem, hosts, remark=health.remark,
                further=[route for part in self._operators for route in part.routes],
            )  # fmt: skip
            await stack.enter_async_context(serving_operators(ops, config.ops.listen, inherited.get(OPERATORS)))
            connections = Connections(config.http, metrics, ingest.refusal)
            public = self._make_listener(generation, ingest.start_request, connections)
            self.watch(connections.watch(), name="http: timeouts")
            self._events_at = listen(public, config.http.listen, "events", inherited.get(EVENTS))
            stack.push_async_callback(
                self._drain, public, ingest, connections, stop, own_socket=EVENTS not in inherited
            )
            reloading = Reload(
                self, generation, self._read, self._set_generation,
                partial(self._make_pipeline, backpressures=backpressures), show, backpressures[0], retentions, ingest,
                connections, public, hosts, self._operators, consumers, metrics, sizes, clocks,
                self.notifier, stop, run_file, self._run_state,
            )  # fmt: skip
            self.watch(reloading.run(reload), name="reload")
            self._tell_ready(ingest, health)
            stop.start = None
            for part in self._operators:
                stack.callback(part.close)
            log.info("ready: ingestd %s, %d event keys", __version__, len(generation.validator.keys))
            await stop.wait()
        log.info("stopped")

    def _make_listener(
        self, generation: Generation, start_request: StartRequest, connections: Connections
    ) -> IngestListener:
        """The listener for events, of the server that `[http] server` chooses."""
        servers: dict[str, MakeServer] = {"fast": FastServer}
        register_all(generation.plugins.manager, "register_servers", servers)
        options = generation.config.http
        return servers[options.server](start_request, options, connections)

    def _look_after_itself(self) -> Clocks:
        clocks = Clocks(self.partitions, self._metrics)
        self.watch(clocks.run(), name="clocks")
        if self._backends.ownership is not None:
            self.watch(self._backends.ownership.keep(), name="ownership of the state")
        self.watch(give_back_free_memory(), name="memory")
        return clocks

    async def _measure_state(self, consumers: PartitionConsumers) -> StateSizes:
        sizes = StateSizes(self.partitions, self._generation.config, consumers)
        await sizes.start()
        self._metrics.show_state(sizes)
        self.watch(sizes.run(), name="sizes of the state")
        return sizes

    async def _measure_journals(
        self, consumers: PartitionConsumers, backpressures: Sequence[Backpressure]
    ) -> Retentions:
        options, refuse = self._generation.config.journal, [each.refuse for each in backpressures]
        retentions = Retentions.of(self.partitions, options, consumers, refuse=refuse)
        await retentions.start()
        self._metrics.show_journal(retentions)
        self.watch(retentions.run(), name="retention")
        return retentions

    def _tell_ready(self, ingest: Ingest, health: Health) -> None:
        tune_the_interpreter()
        # Only now: during the start, no caller waits for a plugin that holds the loop.
        metrics = self._metrics
        monitor = LoopMonitor(
            lambda: plugin_modules(self._generation.plugins.loaded), metrics.loop_held, metrics.loop_delay.observe
        )
        self.watch(monitor.run(), name="loop monitor")
        self.notifier.ready("serving: generation 1")
        self.watch(self.notifier.keepalive(self._describe(ingest, health)), name="systemd keepalive")

    def _make_pipeline(self, generation: Generation, backpressures: Sequence[Backpressure]) -> Pipeline:
        hooks = generation.plugins.hooks
        processors = Processors(hooks, self.store, self.partitions, backpressures, self._backends.placements)
        return Pipeline(
            hooks, generation.validator, processors, self._outcomes, generation.config.http,
            unusable_ids=self.unusable_ids, intakes=generation.plugins.intakes,
        )  # fmt: skip

    def _set_generation(self, generation: Generation) -> None:
        self._generation = generation

    def _tell_stopping(self) -> None:
        limit = 2 * self._generation.config.http.shutdown_timeout + _TO_CLOSE
        self.notifier.stopping("shutting down", limit)

    def _problem(self, ingest: Ingest, health: Health) -> str | None:
        return "shutting down" if ingest.draining else health.problem()

    async def _recover(self, partition: Partition) -> list[str]:
        """Have all plugins restore the data that a partition has lost. Returns the data that they cannot restore.

        Plugins restore only data that belongs to no tenant, and that is in the first partition.
        """
        if partition is not self.partitions[0]:
            return []
        missing = await self._generation.plugins.hooks.store_lost(self.store)
        await self._backends.remember_store()
        return missing

    def _for_operators(
        self, problem: Callable[[], str | None], health: Health, retentions: Retentions, demands: Sequence[Demand]
    ) -> Operators:
        return Operators(
            self._operators, self, self._generation.config, self._generation.validator, lambda: self._events_at,
            self._metrics, problem, health.remark, retentions, self._backends.placements,
            lambda: self._generation.plugins.hooks, demands, self._outcomes,
        )  # fmt: skip

    def _show(self, consumers: PartitionConsumers, sizes: StateSizes, generation: Generation) -> None:
        """Show sinks and consumers in the metrics and on the operators' page."""
        sizes.share_out()
        sinks = sink_statuses(consumers, generation.sinks)
        self._metrics.show_consumers(consumers.statuses)
        self._metrics.show_sinks(sinks)
        fed = {sink.name for sink in sinks}
        types = {name: table["type"] for name, table in generation.config.sink_tables.items()}
        shown = Shown(sinks, types, [each for each in consumers.statuses if each.name not in fed])
        for part in self._operators:
            part.show(shown)

    def _describe(self, ingest: Ingest, health: Health) -> Callable[[float], str]:
        """Makes the status of the daemon in `systemctl status`."""
        before = 0.0

        def describe(seconds: float) -> str:
            nonlocal before
            accepted = self._metrics.accepted()
            rate, before = (accepted - before) / seconds, accepted
            problem, remark = self._problem(ingest, health), health.remark()
            state = "serving" if problem is None else f"not ready: {problem}"
            if problem is None and remark is not None:
                state += f", but {remark}"
            count = len(self._generation.sinks)
            sinks = f"{count} sink{'s' * (count != 1)}"
            return f"{state}: generation {self._generation.number}, {sinks}, {rate:.0f} events/s"

        return describe

    async def _drain(
        self, public: IngestListener, ingest: Ingest, connections: Connections, stop: Shutdown, *, own_socket: bool
    ) -> None:
        """Answer open requests, and new ones on open connections, within the limit. Accept no new connections."""
        options = self._generation.config.http
        log.info("shutting down: answering %d open requests", len(ingest.active))
        ingest.drain()
        if own_socket:  # connections in the queue of a passed socket wait for the next daemon
            public.accept_queued()
        public.stop()
        unanswered = await connections.drain(options.shutdown_timeout, stop.forced)
        if unanswered:
            log.warning("shutting down: %d requests were cut off unanswered", unanswered)
        await public.close_all_connections()
        ingest.access.end_second()

    async def _stop_consumers(self, consumers: PartitionConsumers) -> None:
        await consumers.stop(self._generation.config.http.shutdown_timeout)

    async def _start_plugins(self) -> None:
        """Start all plugins. From then on, a loss of data calls them."""
        try:
            await self._generation.plugins.hooks.startup(
                self, waits=lambda plugin: self._waits.wait(f"waits for plugin {plugin}", limit=TIMING.plugin_startup)
            )
        except HookFailure as failure:
            cause = failure.__cause__
            log.error("%s", failure, exc_info=cause)  # noqa: TRY400 - the traceback is that of the plugin
            reason = f"{failure}: {cause!r}"
            # A file or a network may come back. For other errors, an operator must mend or remove the plugin.
            raise (Unavailable(reason) if isinstance(cause, OSError) else ConfigError(reason)) from failure
        self._metrics.show_losses(self.store)
        for loss in self._losses:
            self.watch(loss.run(), name="recovery of lost data")

    async def _shut_plugins_down(self, stop: Shutdown, *raised: object) -> None:
        error = raised[1] if isinstance(raised[1], Exception) else None
        if stop.start is not None:
            stop.start.uncancel()  # limits of time do not work in a task that is being cancelled
        code = 0 if error is None else exit_code(error) or 1
        for failure in await self._generation.plugins.hooks.shutdown(
            lambda plugin: self._waits.wait(
                f"waits for the shutdown of plugin {plugin}", limit=TIMING.plugin_shutdown, code=code
            )
        ):
            cause = failure.__cause__
            log.error("%s: %r", failure, cause, exc_info=None if isinstance(cause, Unavailable) else cause)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """`ingestd serve`: run the daemon until a signal ends it."""
    configure_logs(config.logs)
    read = partial(load_config, Path(config.source), arguments.set)
    await Server(config, plugins, read=read, shared=arguments.shared).run()


def _backpressures(options: HttpOptions, partitions: int) -> list[Backpressure]:
    """The limits of each partition, which share one room."""
    first = Backpressure(options.max_waiting, int(options.max_buffered))
    return [first, *(Backpressure(beside=first) for _ in range(partitions - 1))]


@contextlib.contextmanager
def _kept(keepers: Iterable[LogKeeper]) -> Iterator[None]:
    """Let extensions see the log."""
    for keeper in keepers:
        logging.getLogger().addHandler(keeper)
    try:
        yield
    finally:
        for keeper in keepers:
            logging.getLogger().removeHandler(keeper)
