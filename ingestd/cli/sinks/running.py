"""The execution of an operator command: by the daemon that has the sink, or by this process without such a daemon."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ingestd.api import times
from ingestd.api.errors import CommandError, ConfigError, Unavailable
from ingestd.api.store import Store
from ingestd.config import Config
from ingestd.consumers.group import Consumers, ConsumerStatus
from ingestd.delivery import SinkConsumer, make_sink_consumer
from ingestd.delivery.operator_commands import OperatorCommands, load_commands
from ingestd.delivery.progress import Progress, load_last_failure, load_progress
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

from .durable import Durable
from .status import daemon_runs

__all__ = ["Outcome", "Run", "check_ready", "leave", "make_feeder", "waiting"]

_LOOK = 0.2  # seconds between two reads of the progress
_REST = 5.0  # seconds that the sink may take to become idle after its last command
_SILENCE = 10.0  # seconds without progress until a comment, or without an answer of the store until an error


def make_feeder(name: str, config: Config, plugins: Plugins) -> SinkConsumer:
    """A consumer that executes the commands of a sink in this process. Raises `ConfigError`."""
    table = config.sink_tables[name]
    made = make_sink_consumer(name, table, plugins.sinks[table["type"]], config, transforms=plugins.transforms)
    made.only_commands = True
    return made


def check_ready(name: str, durable: Durable, *, wait: bool) -> None:
    """Raises `CommandError` if waiting would never end."""
    if wait and durable.orders.paused:
        raise CommandError(
            f"the sink {name} is paused: resume it with ingestd sinks resume {name}, or give the command with --no-wait"
            " to have it executed after that"
        )


def waiting(name: str, number: int) -> str:
    """The output for a command without waiting."""
    return f"command {number} waits for the daemon that has the sink; ingestd sinks status {name} shows its progress"


@dataclass(frozen=True)
class Outcome:
    before: Progress | None
    """The progress when the command began, None if this process has not seen it."""
    after: Progress | None
    """The progress when the command ended, or now. None if later commands have been executed since."""
    interrupted: int | None
    """The signal that ended the waiting before the command was done."""
    elsewhere: bool
    """Whether a daemon has the sink."""


def leave(name: str, outcome: Outcome, *, quiet: bool) -> None:
    """End the process like the signal that interrupted it. The operator command remains in the store."""
    if outcome.interrupted is None:
        return
    if not quiet:
        how = "continues in the daemon" if outcome.elsewhere else "is kept, and continues as soon as a daemon runs"
        sys.stderr.write(f"the command {how}; ingestd sinks status {name} shows its progress\n")
    sys.stdout.flush()
    raise SystemExit(128 + outcome.interrupted)


class Run:
    """The execution of one command. `durable` is the sink's state before it.

    `show` gets the progress. `say` gets a line for people with the reason for a delay.
    """

    def __init__(
        self,
        feeder: SinkConsumer,
        number: int,
        durable: Durable,
        show: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self._feeder = feeder
        self._name = feeder.sink.name
        self._number = number
        self._show = show
        self._say = say
        self._before: Progress | None = None
        self._see(durable.progress)
        self._said = ""
        self._signal: asyncio.Future[int]
        self._died: asyncio.Future[None]

    async def until_done(self, config: Config, plugins: Plugins) -> Outcome:
        """Wait until the command is done or a signal interrupts it. Raises `ConfigError`, `Unavailable`."""
        loop = asyncio.get_running_loop()
        self._signal, self._died = loop.create_future(), loop.create_future()
        with self._caught():
            backends = Backends(config, plugins)
            try:
                await backends.open(serving=True)
            except ConfigError as error:
                return await self._beside(config, plugins, error)
            try:
                return await self._here(backends)
            finally:
                await backends.close()

    @contextmanager
    def _caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def catch(number: int) -> None:
            if not self._signal.done():
                self._signal.set_result(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, catch, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _beside(self, config: Config, plugins: Plugins, refusal: ConfigError) -> Outcome:
        async with open_backends(config, plugins) as backends:
            if not daemon_runs(await backends.describe()):
                raise refusal  # for another reason than a running daemon
            await self._watch(backends.store)
            return await self._outcome(backends.store, elsewhere=True)

    async def _here(self, backends: Backends) -> Outcome:
        """Execute the command here, unless another daemon of a shared store has the sink: then wait for it."""
        logging.getLogger("ingestd").setLevel(logging.WARNING)  # without a daemon's usual lines
        consumers = Consumers(backends.journal, backends.store, [self._feeder], died=self._has_died)
        (status,) = consumers.statuses
        owning = None
        if backends.ownership is not None:
            owning = asyncio.create_task(backends.ownership.keep(), name="ownership of the state")
            owning.add_done_callback(self._owning_ended)
        try:
            await consumers.start()
            await self._watch(backends.store, status)
            deadline = asyncio.get_running_loop().time() + _REST
            while status.held and not status.paused and asyncio.get_running_loop().time() < deadline:
                if await self._is_told_to_stop(_LOOK / 10):
                    break
            return await self._outcome(backends.store, elsewhere=not status.held)
        finally:
            await consumers.stop(0)
            if owning is not None:
                owning.remove_done_callback(self._owning_ended)
                owning.cancel()
                await asyncio.wait([owning])

    def _has_died(self, name: str, error: BaseException) -> None:
        if not self._died.done():
            failure = error if isinstance(error, ConfigError) else CommandError(f"the task {name} ended: {error!r}")
            failure.__cause__ = error if failure is not error else None
            self._died.set_exception(failure)
            self._died.exception()  # marks it as retrieved: it may come too late to be raised

    def _owning_ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._has_died(task.get_name(), error or RuntimeError("ended without an error"))

    async def _watch(self, store: Store, status: ConsumerStatus | None = None) -> None:
        """Return when the command is done or a signal interrupts. `status` belongs to the consumer in this process."""
        loop = asyncio.get_running_loop()
        last: Progress | None = None
        moved = answered = loop.time()
        while not self._signal.done():
            try:
                progress, orders, reason = await self._look(store)
            except Unavailable:
                if loop.time() - answered > _SILENCE:
                    raise
            else:
                answered = loop.time()
                self._see(progress)
                if progress is not None and progress.command >= self._number:
                    return
                if progress is not None and progress.command == self._number - 1:
                    self._show(progress)
                if progress != last:
                    last, moved = progress, answered
                self._comment(orders, reason, is_here=status is not None and status.held, silence=answered - moved)
            await self._is_told_to_stop(_LOOK)

    def _see(self, progress: Progress | None) -> None:
        """Remember the progress when the command is the next one and has not begun."""
        order, at = (0, 0) if progress is None else (progress.command, progress.at)
        if order == self._number - 1 and not at:
            self._before = progress or Progress(0)

    async def _is_told_to_stop(self, seconds: float) -> bool:
        """Whether a signal arrives within these seconds. Raises the error of a task that has died."""
        futures: list[asyncio.Future[Any]] = [self._signal, self._died]
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():
            await self._died
        return self._signal.done()

    async def _look(self, store: Store) -> tuple[Progress | None, OperatorCommands, str | None]:
        state = store.begin(times.now())
        progress = await load_progress(state, self._name)
        orders, trouble = await load_commands(state, self._name), await load_last_failure(state, self._name)
        await store.commit(state)
        return progress, orders, None if trouble is None else trouble.reason

    def _comment(self, orders: OperatorCommands, reason: str | None, *, is_here: bool, silence: float) -> None:
        said = ""
        if orders.paused:
            said = f"{self._name} is paused: the command waits until it is resumed"
        elif is_here:  # the log shows failures
            said = "no daemon has the sink, so this command writes to it"
        elif reason is not None:
            said = f"{self._name} is failing and retries: {reason}"
        elif silence > _SILENCE:
            said = f"no progress for {_SILENCE:g} s: check that a daemon with the sink {self._name} is running"
        if said and said != self._said:
            self._say(said)
        self._said = said

    async def _outcome(self, store: Store, *, elsewhere: bool) -> Outcome:
        progress, _, _ = await self._look(store)
        self._see(progress)
        is_done = progress is not None and progress.command >= self._number
        interrupted = None if is_done or not self._signal.done() else self._signal.result()
        is_known = progress is not None and progress.command <= self._number
        return Outcome(self._before, progress if is_known else None, interrupted, elsewhere)
