"""The execution of an operator command: by the daemon that has the sink, or by this process without such a daemon."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ingestd.api import times
from ingestd.api.errors import CommandError, ConfigError, Unavailable
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import SinkConsumer, make_sink_consumer
from ingestd.delivery.operator_commands import OperatorCommands, load_commands
from ingestd.delivery.progress import LAST_FAILURE, PROGRESS, LastFailure, Progress
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

from .durable import Durable
from .given import Given, Outcome
from .look import daemon_runs

__all__ = ["Run", "check_ready", "conclude", "make_feeder", "waiting"]

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
    if wait and durable.commands.paused:
        raise CommandError(
            f"the sink {name} is paused: resume it with ingestd sinks resume {name}, or give the command with --no-wait"
            " to have it executed after that"
        )


def waiting(name: str, given: Sequence[Given]) -> str:
    """The output for a command without waiting."""
    shown = f"ingestd sinks status {name} shows its progress"
    if len(given) == 1 and not given[0].partition.name:
        return f"command {given[0].number} waits for the daemon that has the sink; {shown}"
    return f"the command waits in {len(given)} partitions for the daemons that have the sink; {shown}"


def conclude(name: str, outcome: Outcome, facts: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result, or end the process like the signal that interrupted it. Then the command stays in the store."""
    if as_json or outcome.interrupted is None:
        write_result(facts, lines=lines, as_json=as_json)
    if outcome.interrupted is None:
        return
    if not as_json:
        how = "continues in the daemon" if outcome.elsewhere else "is kept, and continues as soon as a daemon runs"
        sys.stderr.write(f"the command {how}; ingestd sinks status {name} shows its progress\n")
    sys.stdout.flush()
    raise SystemExit(128 + outcome.interrupted)


class Run:
    """The execution of a command, which was given in one or several partitions.

    `show` gets the number of records or dead letters that are done. `say` gets a line for people with the reason for a
    delay.
    """

    def __init__(
        self, feeder: SinkConsumer, given: Sequence[Given], show: Callable[[int], None], say: Callable[[str], None]
    ) -> None:
        self._feeder = feeder
        self._name = feeder.sink.name
        self._given = given
        self._show = show
        self._say = say
        self._said = ""
        self._signal: asyncio.Future[int]
        self._died: asyncio.Future[None]

    async def until_done(self, config: Config, plugins: Plugins) -> Outcome:
        """Wait until the command is done or a signal interrupts it. Raises `ConfigError`, `Unavailable`."""
        loop = asyncio.get_running_loop()
        self._signal, self._died = loop.create_future(), loop.create_future()
        with self._caught():
            # The daemons of a cluster divide the partitions among all that serve. This process would get a share, in
            # which nobody delivers new records, and where it may not open the file of a daemon's sink.
            if self._given[0].partition.name and await Backends(config, plugins).daemons():
                return await self._leave_to_daemon(config, plugins)
            backends = Backends(config, plugins)
            try:
                await backends.open(serving=True)
            except ConfigError as error:
                return await self._leave_to_daemon(config, plugins, error)
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

    async def _leave_to_daemon(self, config: Config, plugins: Plugins, refusal: ConfigError | None = None) -> Outcome:
        """`refusal` is why this process cannot serve, which may have another reason than a running daemon."""
        async with open_backends(config, plugins) as backends:
            if refusal is not None and not daemon_runs(await backends.describe()):
                raise refusal
            self._locate(backends)
            await self._watch()
            return await self._outcome(elsewhere=True)

    async def _here(self, backends: Backends) -> Outcome:
        """Execute the command here, unless another daemon of a shared store has the sink: then wait for it."""
        logging.getLogger("ingestd").setLevel(logging.WARNING)  # without a daemon's usual lines
        self._locate(backends)
        consumers = PartitionConsumers([each.partition for each in self._given], [self._feeder], died=self._has_died)
        (status,) = consumers.statuses
        owning = None
        if backends.ownership is not None:
            owning = asyncio.create_task(backends.ownership.keep(), name="ownership of the state")
            owning.add_done_callback(self._owning_ended)
        try:
            await consumers.start()
            await self._watch(status)
            deadline = asyncio.get_running_loop().time() + _REST
            while status.held and not status.paused and asyncio.get_running_loop().time() < deadline:
                if await self._is_told_to_stop(_LOOK / 10):
                    break
            return await self._outcome(elsewhere=not status.held)
        finally:
            await consumers.stop(0)
            if owning is not None:
                owning.remove_done_callback(self._owning_ended)
                owning.cancel()
                await asyncio.wait([owning])

    def _locate(self, backends: Backends) -> None:
        """Continue with these back ends: the ones in which the command was given are closed."""
        partitions = {partition.name: partition for partition in backends.partitions}
        for each in self._given:
            each.partition = partitions[each.partition.name]

    def _has_died(self, name: str, error: BaseException) -> None:
        if not self._died.done():
            failure = error if isinstance(error, ConfigError) else CommandError(f"the task {name} ended: {error!r}")
            failure.__cause__ = error if failure is not error else None
            self._died.set_exception(failure)
            self._died.exception()  # marks it as retrieved: it may come too late to be raised

    def _owning_ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._has_died(task.get_name(), error or RuntimeError("ended without an error"))

    async def _watch(self, status: ConsumerTotals | None = None) -> None:
        """Return when the command is done or a signal interrupts. `status` belongs to the consumer in this process."""
        loop = asyncio.get_running_loop()
        last: Sequence[Progress | None] = ()
        moved = answered = loop.time()
        while not self._signal.done():
            try:
                reasons = [await self._read(each) for each in self._given if not each.is_done]
            except Unavailable:
                if loop.time() - answered > _SILENCE:
                    raise
            else:
                answered = loop.time()
                if all(each.is_done for each in self._given):
                    return
                begun = [reached for each in self._given if (reached := each.reached) is not None]
                if begun:
                    self._show(sum(begun))
                if last != (last := [each.progress for each in self._given]):
                    moved = answered
                is_here = status is not None and status.held
                self._comment(reasons, is_here=is_here, silence=answered - moved)
            await self._is_told_to_stop(_LOOK)

    async def _is_told_to_stop(self, seconds: float) -> bool:
        """Whether a signal arrives within these seconds. Raises the error of a task that has died."""
        futures: list[asyncio.Future[Any]] = [self._signal, self._died]
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():
            await self._died
        return self._signal.done()

    async def _read(self, given: Given) -> tuple[OperatorCommands, LastFailure | None]:
        """Look at the progress. Returns why there may be none."""
        store = given.partition.store
        state = store.begin(times.now())
        progress = await PROGRESS.load(state, self._name)
        commands, failure = await load_commands(state, self._name), await LAST_FAILURE.load(state, self._name)
        await store.commit(state)
        given.see(progress)
        return commands, failure

    def _comment(
        self, reasons: Sequence[tuple[OperatorCommands, LastFailure | None]], *, is_here: bool, silence: float
    ) -> None:
        failure = next((failed for _, failed in reasons if failed is not None), None)
        said = ""
        if any(commands.paused for commands, _ in reasons):
            said = f"{self._name} is paused: the command waits until it is resumed"
        elif is_here:  # the log shows failures
            said = "no daemon has the sink, so this command writes to it"
        elif failure is not None:
            said = f"{self._name} is failing and retries: {failure.reason}"
        elif silence > _SILENCE:
            said = f"no progress for {_SILENCE:g} s: check that a daemon with the sink {self._name} is running"
        if said and said != self._said:
            self._say(said)
        self._said = said

    async def _outcome(self, *, elsewhere: bool) -> Outcome:
        for each in self._given:
            await self._read(each)
        is_done = all(each.is_done for each in self._given)
        interrupted = None if is_done or not self._signal.done() else self._signal.result()
        return Outcome(self._given, interrupted, elsewhere)
