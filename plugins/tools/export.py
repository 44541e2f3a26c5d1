"""`ingestd events export`: the journal's records as JSON lines, oldest first."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence

from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.config import Config
from ingestd.delivery.transforms import TYPES
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.names import hint
from ingestd.support.streams import reader_is_gone
from ingestd.support.terminal import json_escaped
from ingestd.validation.schema_files import read_schemas

from .journal_reading import RecordReader
from .record_selection import RecordSelection

__all__ = ["export_events"]

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
            raise CommandError(f"no record has the type {each!r}; {hint(each, sorted(TYPES))}")


async def _check_keys(keys: Sequence[str], config: Config, reader: RecordReader) -> None:
    """Check that each key exists. The journal may hold events of a key without a schema."""
    if not keys:
        return
    known = sorted(file.key for file in read_schemas(config.schemas.directory) if file.key is not None)
    for key in keys:
        if key not in known and not await _exists(RecordSelection(keys=[key]), reader):
            raise CommandError(f"there is no event key {key!r}; {hint(key, known)}")


async def _exists(selection: RecordSelection, reader: RecordReader) -> bool:
    """Whether there is such a record. Raises `CommandError` if it may be in a partition out of reach."""
    search = reader.again()
    async for records in search.pages():
        if any(map(selection.matches, records)):
            return True
    search.missing.check("nobody knows whether it has such records")
    return False
