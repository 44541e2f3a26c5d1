"""`ingestd events export`: the journal's records as JSON lines, oldest first."""

from __future__ import annotations

import argparse
import asyncio
import heapq
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from operator import attrgetter

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.config import Config
from ingestd.delivery.transforms import TYPES
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.names import nearest
from ingestd.support.streams import reader_is_gone
from ingestd.support.terminal import json_escaped
from ingestd.validation.schema_files import read_schemas

from .record_selection import RecordSelection
from .sinks.moments import first_since

__all__ = ["RecordReader", "export_events"]

_POLL = 0.2  # seconds between two reads of new records


async def export_events(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Without `--follow`, the output ends with the newest record at the start of the command.

    Records of several partitions are merged by the time of their receipt. A pipe or a file gets the stored bytes. A
    terminal gets escapes for control characters.
    """
    if arguments.follow and arguments.until is not None:
        arguments.fail("--follow never ends, so it cannot be used with --until")
    selection = RecordSelection(
        types=arguments.types,
        keys=arguments.keys,
        tenant=arguments.tenant,
        user=arguments.user,
        anonymous=arguments.anonymous,
        order=arguments.order,
        since=arguments.since,
        until=arguments.until,
    )
    async with open_backends(config, plugins) as backends:
        tenant = arguments.tenant
        # A tenant may be moved while its records are followed.
        everywhere = tenant is None or arguments.follow
        reader = RecordReader(backends.partitions if everywhere else backends.all_of_tenant(tenant))
        await _check_types(arguments.types, reader)
        await _check_keys(arguments.keys, config, reader)
        left: int | None = arguments.limit
        async for records in _followed(reader) if arguments.follow else reader.pages():
            chosen = [record for record in records if selection.matches(record)][:left]
            _write(chosen)
            if left is not None:
                left -= len(chosen)
                if not left:
                    break
        reader.missing.check("records of its tenants are missing here")


def _write(records: Iterable[Record]) -> None:
    out = sys.stdout.buffer
    on_terminal = sys.stdout.isatty()
    for record in records:
        out.write((json_escaped(record.body) if on_terminal else record.body) + b"\n")
    out.flush()


async def _followed(reader: RecordReader) -> AsyncIterator[Sequence[Record]]:
    """All records, then new ones as they are stored, until the reader of the output has ended."""
    while not reader_is_gone():
        async for records in reader.pages():
            yield records
        reader.missing.check("records of its tenants are missing here")
        if await reader.has_lost_records():
            raise CommandError("the journal has lost its newest records or has been replaced; run the command again")
        await asyncio.sleep(_POLL)


async def _check_types(types: Iterable[str], reader: RecordReader) -> None:
    """Check that each type exists. Types of plugins are known only from records in the journal."""
    for each in types:
        if each not in TYPES and not await _exists(RecordSelection(types=[each]), reader):
            raise _unknown(f"no record has the type {each!r}", each, TYPES)


async def _check_keys(keys: Sequence[str], config: Config, reader: RecordReader) -> None:
    """Check that each key exists. The journal may hold events of a key without a schema."""
    if not keys:
        return
    known = [file.key for file in read_schemas(config.schemas.directory) if file.key is not None]
    for key in keys:
        if key not in known and not await _exists(RecordSelection(keys=[key]), reader):
            raise _unknown(f"there is no event key {key!r}", key, known)


async def _exists(selection: RecordSelection, reader: RecordReader) -> bool:
    """Whether there is such a record. Raises `CommandError` if it may be in a partition out of reach."""
    search = reader.again()
    async for records in search.pages():
        if any(map(selection.matches, records)):
            return True
    search.missing.check("nobody knows whether it has such records")
    return False


def _unknown(what: str, name: str, known: Collection[str]) -> CommandError:
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
    return CommandError(f"{what}; {hint}")


_PAGE = 500


class RecordReader:
    """`missing` has the partitions that cannot be read. The others are read nevertheless.

    It begins with the oldest records, or with those received at `since`, in milliseconds.
    """

    def __init__(self, partitions: Sequence[Partition], since: int = 0) -> None:
        self.missing = MissingPartitions(partitions)
        self._since = since
        self._sources = [_Source(partition) for partition in partitions]

    def again(self) -> RecordReader:
        """A reader that begins with the oldest records."""
        return RecordReader([source.partition for source in self._sources])

    async def pages(self) -> AsyncIterator[Sequence[Record]]:
        """The records after those of earlier calls, up to the newest ones at the time of the call.

        Within a partition, the records keep the order of the journal.
        """
        for source in self._sources:
            with self.missing.tolerating(source.partition):
                await source.reach_end(self._since)
        while there := await self._sources_with_page():
            # The journal whose page ends first may go on with earlier records than those of the other pages.
            until = min(max(record.at for record in source.page) for source in there)
            taken = [source.take(until) for source in there]
            yield taken[0] if len(taken) == 1 else [*heapq.merge(*taken, key=attrgetter("at"))]

    async def _sources_with_page(self) -> list[_Source]:
        for source in self._sources:
            if not source.page:
                with self.missing.tolerating(source.partition):
                    await source.fill()
        return [source for source in self._sources if source.page]

    async def has_lost_records(self) -> bool:
        """Whether a journal ends before the last record that was read."""
        for source in self._sources:
            if await source.partition.journal.last() < source.position:
                return True
        return False


class _Source:
    """A journal that is read in order."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.position = 0
        """The position of the last record that was read."""
        self.last = 0
        """The position at which reading ends."""
        self.page: Sequence[Record] = ()
        """Records that were read and not taken yet."""

    async def reach_end(self, since: int) -> None:
        """Read up to the present end, from now on. The first time, skip the records received before `since`."""
        journal = self.partition.journal
        if since and not self.last:
            self.position = await first_since(journal, await journal.extent(), since) - 1
        self.last = await journal.last()

    async def fill(self) -> None:
        if self.position >= self.last:
            return
        read = await self.partition.journal.read(self.position, _PAGE)
        self.page = [record for record in read if record.position <= self.last]
        # Without records, retention has removed them.
        self.position = self.page[-1].position if self.page else self.last

    def take(self, until: int) -> Sequence[Record]:
        """The next records, up to the first one after that time."""
        page = self.page
        count = next((index for index, record in enumerate(page) if record.at > until), len(page))
        self.page = page[count:]
        return page[:count]
