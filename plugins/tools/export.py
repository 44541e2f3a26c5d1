"""`ingestd events export`: the journal's records as JSON lines, oldest first."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Sequence

from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.imported import is_completed
from ingestd.config import Config
from ingestd.delivery.transforms import TYPES
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.names import hint
from ingestd.support.record_head import read_head
from ingestd.support.streams import reader_is_gone
from ingestd.support.terminal import json_escaped
from ingestd.validation.schema_files import read_schemas

from .journal_reading import RecordReader

__all__ = ["RecordSelection", "export_events"]

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


class RecordSelection:
    """Empty `types` and `keys`, and None, select all records. `since` is included, `until` is not.

    A record that an import has stored once more is selected once, as it was stored last.
    """

    def __init__(
        self,
        *,
        types: Collection[str] = (),
        keys: Collection[str] = (),
        tenant: str | None = None,
        user: str | None = None,
        anonymous: str | None = None,
        order: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self._types, self._keys = frozenset(types), frozenset(keys)
        self._tenant, self._user, self._anonymous, self._order = tenant, user, anonymous, order
        self._since, self._until = since, until
        self._texts = [_encoded(each) for each in (tenant, user, anonymous, order) if each is not None]
        """Texts that a body without escapes must contain, all of them."""
        self._key_texts = [_encoded(key) for key in self._keys]
        """Texts of which a body without escapes must contain at least one."""

    def matches(self, record: Record) -> bool:
        if (self._types and record.type not in self._types) or is_completed(record.body):
            return False
        if self._since is not None and record.at < self._since:
            return False
        if self._until is not None and record.at >= self._until:
            return False
        if not self._texts and not self._key_texts:
            return True
        return self._may_match(record.body) and self._body_matches(record.body)

    def _may_match(self, body: bytes) -> bool:
        """A fast search before the costly decoding. Only a backslash can hide a text from it."""
        if b"\\" in body:
            return True
        if not all(text in body for text in self._texts):
            return False
        return not self._key_texts or any(text in body for text in self._key_texts)

    def _body_matches(self, body: bytes) -> bool:
        head = read_head(body)
        return (
            (not self._keys or head.key in self._keys)
            and self._tenant in {None, head.tenant}
            and self._user in {None, head.user}
            and (self._anonymous is None or self._anonymous in head.visitors)
            and (self._order is None or self._order in head.orders)
        )


def _encoded(text: str) -> bytes:
    # An argument of the command line may contain invalid UTF-8. No record contains it.
    return text.encode(errors="surrogateescape")
