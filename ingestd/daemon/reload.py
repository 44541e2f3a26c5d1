"""The reload on SIGHUP: the daemon reads and checks the whole configuration, then applies all of it or nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ingestd.api.errors import ConfigError, IngestdError, Unavailable
from ingestd.api.hookspecs import Daemon
from ingestd.config import Config
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.consumers.runner import Runner
from ingestd.delivery import feeders_of
from ingestd.hooks.caller import HookFailure
from ingestd.http.app import Ingest, IngestListener
from ingestd.http.connection_limits import Connections
from ingestd.http.operators import OperatorsPart
from ingestd.http.ops import OwnHosts
from ingestd.http.settings import RequestSettings
from ingestd.observability.logs import configure_logs
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.scheduling.room import Backpressure
from ingestd.storage.retentions import Retentions
from ingestd.validation.schema_files import shorten
from ingestd.validation.validator import Validator

from .clocks import Clocks
from .generation import Generation, differences, next_generation, renewed
from .notifier import Notifier
from .process import files_needed, raise_file_limit
from .run_file import RunFile, RunState
from .shutdown import Shutdown
from .state_sizes import StateSizes

__all__ = ["Reload"]

log = logging.getLogger("ingestd.reload")

_TRIAL = 1.0  # seconds for which new schemas are tried on the newest events
_MOST_REMARKS, _LONGEST = 20, 500  # in the run file


@dataclass(eq=False)
class Reload:
    """Reloads on request. It has all parts of a running daemon that a reload changes."""

    daemon: Daemon
    generation: Generation
    read: Callable[[], Config]
    """Reads the configuration."""
    applied: Callable[[Generation], None]
    """Gets each generation that comes into force."""
    make_pipeline: Callable[[Generation], Pipeline]
    show: Callable[[Generation], None]
    backpressure: Backpressure
    retentions: Retentions
    ingest: Ingest
    connections: Connections
    public: IngestListener
    hosts: OwnHosts
    operators: Sequence[OperatorsPart]
    consumers: PartitionConsumers
    metrics: Metrics
    sizes: StateSizes
    clocks: Clocks
    notifier: Notifier
    stop: Shutdown
    run_file: RunFile
    state: RunState
    remarks: Sequence[str] = ()

    async def run(self, asked: asyncio.Event) -> None:
        """Reload whenever `asked` is set. A request during a reload leads to one more reload. Never returns."""
        while True:
            await asked.wait()
            asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        log.info("reading the configuration again")
        self._note(begun=self.state.begun + 1)
        self.notifier.reloading()
        before = self.generation
        try:
            after, coming = await self._make_next(before)
        except Exception as error:  # noqa: BLE001 - after any error the daemon keeps its generation
            self._refused(error)
            return
        self.generation = after
        self.applied(after)
        self._put_into_force(after)
        await self._exchange_sinks(before, after, coming)
        changes = ", ".join(differences(before, after)) or "nothing has changed"
        log.info("generation %d of the configuration is in force: %s", after.number, changes)
        self._over(remarks=self.remarks)

    def _put_into_force(self, after: Generation) -> None:
        """Apply this generation to new requests and to all limits."""
        config = after.config
        configure_logs(config.logs)
        raise_file_limit(files_needed(config.http.max_connections))
        self.backpressure.room.apply_options(config.http.max_waiting, int(config.http.max_buffered))
        self.retentions.apply_options(config.journal)
        self.sizes.apply_options(config)
        self.connections.apply_options(config.http)
        self.public.apply_options(config.http)
        self.hosts.apply_options(config.ops)
        for part in self.operators:
            part.apply_options(config, after.validator)
        self.ingest.access.apply_options(config.logs)
        self.ingest.settings = RequestSettings(self.make_pipeline(after), config.http, after.plugins.intakes)
        self.metrics.generation.set(after.number)
        self.clocks.confirm()

    async def _exchange_sinks(self, before: Generation, after: Generation, coming: Sequence[Sequence[Runner]]) -> None:
        """Replace the sinks with changed options: each keeps its cursor and counts. Other sinks continue untouched."""
        leaving = {each.name: feeders_of(self.consumers, each) for each in before.sinks if each not in after.sinks}
        await self.consumers.exchange(leaving, coming, before.config.http.shutdown_timeout)
        for sink in after.sinks:
            for new, old in zip(feeders_of(self.consumers, sink), leaving.get(sink.name, ()), strict=False):
                new.count_on(old)
        self.show(after)

    async def _make_next(self, before: Generation) -> tuple[Generation, Sequence[Sequence[Runner]]]:
        """Do every step that can fail."""
        config, validator = await asyncio.to_thread(self._read_files)
        after = next_generation(before, config, validator)
        self.remarks = await self._breaking_changes(before, after)
        leaving = [each.name for each in before.sinks if each not in after.sinks]
        coming = [each for each in after.sinks if each not in before.sinks]
        runners = await self.consumers.prepare_runners(coming, leaving)
        await after.plugins.hooks.take_over(renewed(before.plugins, after.plugins), self.daemon)
        if self.stop.requested:  # no sink may start during a shutdown
            raise Unavailable("the daemon is shutting down")
        return after, runners

    async def _breaking_changes(self, before: Generation, after: Generation) -> list[str]:
        """What the new schemas refuse of the events in the journal."""
        if before.validator.sources == after.validator.sources:
            return []
        try:
            trials = after.plugins.manager.hook.try_schemas(
                validator=after.validator, partitions=self.daemon.partitions, seconds=_TRIAL
            )
            remarks = [f"the new schema of {each.name} {each.text}" for trial in trials for each in await trial]
        except Unavailable as error:
            remarks = [f"the new schemas were not tried on stored events: {error}"]
        for remark in remarks:
            log.warning("%s", remark)
        return remarks

    def _read_files(self) -> tuple[Config, Validator]:
        config = self.read()
        return config, Validator.load(config.schemas.directory)

    def _refused(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, HookFailure) else error
        reason = f"{error}: {cause!r}" if isinstance(error, HookFailure) else str(error)
        if isinstance(cause, Unavailable | OSError):
            code = os.EX_TEMPFAIL
        else:
            code = os.EX_CONFIG if isinstance(error, HookFailure | ConfigError) else 1
        expected = isinstance(cause, IngestdError | OSError)
        number = self.generation.number
        log.error(
            "the configuration is not reloaded, generation %d stays in force: %s",
            number, reason or repr(error), exc_info=None if expected else cause,
        )  # fmt: skip
        self._over(refused=reason or repr(error), code=code)

    def _over(self, *, refused: str | None = None, code: int = 0, remarks: Sequence[str] = ()) -> None:
        self.metrics.reloaded.set(refused is None)
        self.notifier.remark("" if refused is None else f"the last reload was refused: {refused}")
        if not self.stop.requested:
            self.notifier.ready(f"serving: generation {self.generation.number}")
        self._note(
            ended=self.state.begun, generation=self.generation.number, refused=refused, code=code,
            remarks=[shorten(each, _LONGEST) for each in remarks[:_MOST_REMARKS]],
        )  # fmt: skip

    def _note(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self.run_file.write(self.state)
