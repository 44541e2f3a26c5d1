"""`ingestd events import`: stores the records and messages of files."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import Any, cast

from ingestd.api.errors import CommandError, Unavailable
from ingestd.api.hookspecs import Daemon
from ingestd.api.journal import Journal
from ingestd.api.output import write
from ingestd.api.terminal import table
from ingestd.api.unusable_ids import UnusableIds
from ingestd.cli.command_daemon import CommandDaemon
from ingestd.cli.sinks.progress_bar import ProgressBar
from ingestd.config import Config
from ingestd.delivery import make_sink_consumer
from ingestd.hooks.loader import Plugins
from ingestd.pipeline.backpressure import Backpressure
from ingestd.pipeline.import_resolver import ImportResolver
from ingestd.pipeline.processor import Processor
from ingestd.storage.backends import Backends, open_backends
from ingestd.storage.retention import room_below
from ingestd.validation.validator import Validator

from .fault_report import FaultReport
from .file_form import intake_of
from .importer import Importer, chunks
from .known_records import KnownRecords
from .line_reader import LineReader
from .lines import InputFiles

__all__ = ["import_events"]

_OF_EVENTS = frozenset(
    [
        "check_identity", "prepare", "resolve_user", "resolve_session", "store_identity", "enrich", "filter_event",
        "event_dropped", "register_intakes",
    ]
)  # fmt: skip
"""Hooks that an import calls. Plugins with one of them are started."""
_LONGEST = 4  # times `max_body`: a record may be so much longer than its request
_MEGABYTE = 1_000_000
_PAUSE = 5.0  # seconds between two lines about the progress of a pipe
_LOOK = 0.2  # seconds between two looks at a full journal
_PATIENCE = 30.0  # seconds without room in the journal until the command gives up


async def import_events(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """The journal is read first, so that an event is stored once, however often it is imported."""
    validator = Validator.load(config.schemas.directory)
    # Before the store is opened: then a command of root becomes the owner of the store.
    files = InputFiles(arguments.files, _LONGEST * int(config.http.max_body))
    intake = intake_of(files.files, arguments.format, arguments.tenant, plugins.intakes)
    if intake is not None:
        intake.check(validator.keys)
    reader = LineReader(
        config, plugins, validator, intake=intake, tenant=arguments.tenant, changes_state=arguments.state
    )
    progress = _Progress(files, quiet=arguments.json)
    with closing(files), FaultReport(arguments.errors, progress.say, arguments.max_errors, files.files) as faults:
        async with open_backends(config, plugins) as backends, _started(plugins, backends, config):
            await backends.recover()
            if not arguments.dry_run:
                for partition in backends.partitions:
                    await _ensure_cursors(partition.journal, config, plugins)
            with closing(KnownRecords()) as known:
                journals = [partition.journal for partition in backends.partitions]
                await _learn(known, journals, quiet=arguments.json)
                processor_of = _processors(plugins, backends)
                importer = Importer(reader, processor_of, known, fault=faults.add, dry_run=arguments.dry_run)
                room = _Room(journals, config)
                for chunk in chunks(files, room.chunk):
                    await room.wait()
                    await importer.take(chunk)
                    progress.show(importer.counts.total())
                    if faults.is_full:
                        break
                progress.close()
    _print(arguments, importer)
    if faults.is_full:
        raise CommandError(f"{faults.count} lines are at fault, so the rest was not read; see --max-errors")
    if faults.count:
        raise CommandError(f"{faults.count} lines were not imported")


def _processors(plugins: Plugins, backends: Backends) -> Callable[[str], Processor]:
    """Makes a processor for each partition, and returns a function for the one of a tenant."""
    made = {}
    for partition in backends.partitions:
        processor = Processor(plugins.hooks, partition.store, partition.journal, Backpressure(sys.maxsize))
        processor.resolver = ImportResolver(plugins.hooks, partition.journal)
        made[partition.name] = processor
    return lambda tenant: made[backends.of_tenant(tenant).name]


@asynccontextmanager
async def _started(plugins: Plugins, backends: Backends, config: Config) -> AsyncIterator[None]:
    """The plugins that an import calls are started, and shut down at the end."""
    daemon = _ImportDaemon(backends, plugins, UnusableIds(config.ids.unusable))
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

    def __init__(self, backends: Backends, plugins: Plugins, unusable_ids: UnusableIds) -> None:
        super().__init__(backends, plugins, unusable_ids)
        self._tasks: list[asyncio.Task[None]] = []

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _learn(known: KnownRecords, journals: Sequence[Journal], *, quiet: bool) -> None:
    extents = [await journal.extent() for journal in journals]
    bar = ProgressBar(
        sum(extent.last - extent.first + 1 for extent in extents), "records of the journal read", quiet=quiet
    )
    before = 0
    for journal, extent in zip(journals, extents, strict=True):
        await known.read(journal, partial(_show, bar, before - extent.first + 1))
        before += extent.last - extent.first + 1
    bar.close()


def _show(bar: ProgressBar, before: int, position: int) -> None:
    bar.show(before + position)


class _Progress:
    """The part of the files that was read. The length of a pipe is unknown, so lines are counted then."""

    def __init__(self, files: InputFiles, *, quiet: bool) -> None:
        self._files = files
        self._bar = ProgressBar(-(-(files.size or 0) // _MEGABYTE), "MB read", quiet=quiet)
        self._next = 0.0
        self.say = self._bar.say

    def show(self, lines: int) -> None:
        now = asyncio.get_running_loop().time()
        if self._files.size is not None:
            self._bar.show(-(-self._files.position // _MEGABYTE))
        elif now > self._next:
            self._next = now + _PAUSE
            self.say(f"{lines} lines read")

    def close(self) -> None:
        self._bar.close()


class _Room:
    """The room in journals with `max_size`. The daemon refuses events while their journal is full."""

    def __init__(self, journals: Sequence[Journal], config: Config) -> None:
        self._journals = journals
        self._limit = None if config.journal.max_size is None else room_below(int(config.journal.max_size))
        self.chunk = sys.maxsize
        """The bytes of lines that certainly have room while the journal is not nearly full."""
        if config.journal.max_size is not None and self._limit is not None:
            self.chunk = (int(config.journal.max_size) - self._limit) // 4

    async def wait(self) -> None:
        """Wait while a journal is nearly full. Raises `Unavailable` if nothing makes room."""
        if self._limit is None:
            return
        loop = asyncio.get_running_loop()
        least, since = sys.maxsize, loop.time()
        while (size := max([(await journal.extent()).bytes for journal in self._journals])) > self._limit:
            if size < least:
                least, since = size, loop.time()
            elif loop.time() - since > _PATIENCE:
                raise Unavailable(
                    "the journal is full ([journal] max_size), and no daemon makes room in it; when its sinks have"
                    " caught up, run the command again: it goes on where it was"
                )
            await asyncio.sleep(_LOOK)


def _print(arguments: argparse.Namespace, importer: Importer) -> None:
    counts, types = dict(sorted(importer.counts.items())), dict(sorted(importer.types.items()))
    if arguments.json:
        told = {"dryRun": arguments.dry_run, "lines": importer.counts.total(), "counts": counts, "imported": types}
        write([json.dumps(told)])
    else:
        write(_for_people(counts, types, dry_run=arguments.dry_run))


def _for_people(counts: dict[str, int], types: dict[str, int], *, dry_run: bool) -> Iterator[str]:
    if not counts:
        yield "the files have no lines"
        return
    yield "lines by outcome, nothing is stored:" if dry_run else "lines by outcome:"
    for line in table([(name, str(number)) for name, number in counts.items()], right=[1]):
        yield f"  {line}"
    if types:
        yield "imported, by type:"
        for line in table([(name, str(number)) for name, number in types.items()], right=[1]):
            yield f"  {line}"
