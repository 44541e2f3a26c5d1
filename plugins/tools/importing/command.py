"""`ingestd events import`: stores the records and messages of files."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import Any, cast

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Daemon
from ingestd.api.journal import Journal
from ingestd.cli.main import CommandDaemon
from ingestd.config import Config
from ingestd.delivery import make_sink_consumer
from ingestd.hooks.loader import Plugins
from ingestd.pipeline.processor import Processor
from ingestd.scheduling.room import Backpressure
from ingestd.storage.backends import Backends, open_backends
from ingestd.validation.validator import Validator

from ..sinks.progress_bar import ProgressBar
from .file_form import intake_of
from .import_resolver import ImportResolver
from .importer import Importer, Room, chunks
from .known_records import FormerCopies, KnownRecords
from .line_reader import LineReader
from .lines import InputFiles, Line, find_files
from .progress import Interrupted, Interruption, Progress
from .tally import FaultReport, Tally, listed, print_summary
from .time_order import MergedLines, check_order

__all__ = ["import_events"]

_OF_EVENTS = frozenset(
    [
        "check_identity", "prepare", "resolve_user", "resolve_session", "store_identity", "enrich", "filter_event",
        "event_dropped", "register_intakes",
    ]
)  # fmt: skip
"""Hooks that an import calls. Plugins with one of them are started."""
_LONGEST = 4  # times `max_body`: a record may be so much longer than its request


async def import_events(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Store the events of files. Raises `CommandError` if any line was not imported."""
    tally = Tally()
    with closing(Interruption()) as interruption:
        try:
            await _import(arguments, config, plugins, tally, interruption)
        except Interrupted:
            sys.stderr.write(f"interrupted after {tally.lines} lines; run the command again, and it goes on\n")
            raise KeyboardInterrupt from None


async def _import(
    arguments: argparse.Namespace, config: Config, plugins: Plugins, tally: Tally, interruption: Interruption
) -> None:
    validator = Validator.load(config.schemas.directory)
    names, left_out = find_files(arguments.files)
    # Before the store is opened: then a command of root becomes the owner of the store.
    files = InputFiles(names, _LONGEST * int(config.http.max_body))
    if arguments.state:
        files.spool()
    intake = intake_of(files.files, arguments.format, arguments.tenant, plugins.intakes)
    if intake is not None:
        intake.check(validator.keys)
    reader = LineReader(
        config, plugins, validator, intake=intake, tenant=arguments.tenant, changes_state=arguments.state
    )
    progress = Progress(files, "MB read", quiet=arguments.json)
    if left_out:
        progress.say(f"left out, since their names end otherwise: {listed(left_out)}")
    lines: Iterable[Line] = files
    with (
        closing(files), closing(progress),
        closing(FaultReport(arguments.errors, progress.say, arguments.max_errors, files.files)) as faults,
    ):  # fmt: skip
        interruption.is_guarded = True
        async with open_backends(config, plugins) as backends, _started(plugins, backends, config):
            await backends.recover()
            if arguments.state:
                merged = MergedLines(files.files, times.now(), sorts=intake is not None)
                lines = (dated.line for dated in merged)
                if not arguments.unordered:
                    await _check(merged, reader, Progress(files, "MB checked", quiet=arguments.json), interruption)
            journals = [partition.journal for partition in backends.partitions]
            if not arguments.dry_run:
                for journal in journals:
                    await _ensure_cursors(journal, config, plugins)
            # So that an event is stored once, however often it is imported.
            with closing(KnownRecords()) as known:
                former = await _learn(known, journals, interruption, quiet=arguments.json)
                if not arguments.dry_run:
                    await former.mark()
                processor_of = _processors(plugins, backends)
                importer = Importer(reader, processor_of, known, tally, fault=faults.add, dry_run=arguments.dry_run)
                room = Room(journals, config)
                files.rewind()
                for chunk in chunks(lines, room.chunk):
                    await room.wait(interruption)
                    await importer.take(chunk)
                    progress.show(tally.lines)
                    if faults.is_full:
                        break
    print_summary(tally, faults.places, left_out, dry_run=arguments.dry_run, as_json=arguments.json)
    if faults.is_full:
        raise CommandError(f"{faults.count} lines are at fault, so the rest was not read; see --max-errors")
    if faults.count:
        raise CommandError(f"{faults.count} lines were not imported")


async def _check(merged: MergedLines, reader: LineReader, progress: Progress, interruption: Interruption) -> None:
    """Check the order of the lines on another thread, since it may take minutes."""
    with closing(progress):
        await asyncio.to_thread(check_order, merged, reader.reads_order, progress.step(interruption))


def _processors(plugins: Plugins, backends: Backends) -> Callable[[str], Processor]:
    """Makes a processor for each partition, and returns a function for the one of a tenant."""
    made = {}
    for index, partition in enumerate(backends.partitions):
        check = partial(backends.placements.check, index)
        resolver = ImportResolver(plugins.hooks, partition.journal)
        backpressure = Backpressure(sys.maxsize)
        made[partition.name] = Processor(resolver, partition.store, partition.journal, backpressure, check)
    return lambda tenant: made[backends.of_tenant(tenant).name]


@asynccontextmanager
async def _started(plugins: Plugins, backends: Backends, config: Config) -> AsyncIterator[None]:
    """The plugins that an import calls are started, and shut down at the end."""
    daemon = _ImportDaemon(backends, plugins, config)
    if len(backends.partitions) > 1:
        daemon.watch(backends.follow_placements(), name="placements")
    as_daemon = cast("Daemon", daemon)  # its registry is made when a plugin asks for it
    try:
        await plugins.hooks.startup(as_daemon, [each.name for each in plugins.loaded if _OF_EVENTS & {*each.hooks}])
        yield
    finally:
        for failure in await plugins.hooks.shutdown():
            sys.stderr.write(f"{failure}: {failure.__cause__!r}\n")
        await daemon.end()


async def _ensure_cursors(journal: Journal, config: Config, plugins: Plugins) -> None:
    """Let sinks begin before the imported records. A sink of a new daemon would begin behind them."""
    known = {cursor.name for cursor in await journal.cursors()}
    for name, options in config.sink_tables.items():
        consumer = make_sink_consumer(
            name, options, plugins.sinks[options["type"]], config, transforms=plugins.transforms
        )
        if consumer.name not in known:
            with suppress(CommandError):  # a running daemon begins a new sink when it reloads its configuration
                await journal.ensure_cursor(consumer.name, consumer.start)


class _ImportDaemon(CommandDaemon):
    """Runs the background tasks of plugins, since an import may take hours."""

    def __init__(self, backends: Backends, plugins: Plugins, config: Config) -> None:
        super().__init__(backends, plugins, config)
        self._tasks: list[asyncio.Task[None]] = []

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _learn(
    known: KnownRecords, journals: Sequence[Journal], interruption: Interruption, *, quiet: bool
) -> FormerCopies:
    """Learn the records of the journals. Returns the copies that an interrupted import has left unmarked."""
    former = FormerCopies()
    extents = [await journal.extent() for journal in journals]
    bar = ProgressBar(
        sum(extent.last - extent.first + 1 for extent in extents), "records of the journal read", quiet=quiet
    )
    before = 0

    def show(position: int) -> None:
        interruption.check()
        bar.show(before - extent.first + 1 + position)

    with closing(bar):
        for journal, extent in zip(journals, extents, strict=True):
            for position in await known.read(journal, show):
                former.add(journal, position)
            before += extent.last - extent.first + 1
    return former
