"""State entries in memory: what is cached, what is not yet on disk, and loading what is neither."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from ingestd.store import Field

__all__ = ["Entries", "Entry", "Row", "encode_fields"]

Row = tuple[str, str | None, str | None, int | None]
"""key, value, fields as JSON, expires: a row of the table `state`."""

Load = Callable[[str], Coroutine[Any, Any, Sequence[Row]]]
"""Reads the rows of the keys in a JSON array."""

_read_fields = msgspec.json.Decoder(dict[str, tuple[int, str]]).decode


class Entry:
    """One key's state. An entry that is not there is an Entry without value and fields.

    `dirty`: changed since it was last handed to a commit. `flights`: commits under way that hold it.
    `dead`: a commit that held it failed, so whoever has seen it has seen what never was.
    """

    __slots__ = ("dead", "dirty", "expires", "fields", "flights", "value")

    def __init__(self, value: str | None = None, fields: dict[str, Field] | None = None, expires: int | None = None):
        self.value = value
        self.fields = fields
        self.expires = expires
        self.dirty = False
        self.dead = False
        self.flights = 0

    def row(self, key: str) -> Row:
        return key, self.value, encode_fields(self.fields), self.expires

    @property
    def absent(self) -> bool:
        return self.value is None and not self.fields


def encode_fields(fields: dict[str, Field] | None) -> str | None:
    return msgspec.json.encode(fields).decode() if fields else None


class Entries:
    """At most `limit` entries; those not yet on disk come on top and are never let go."""

    def __init__(self, limit: int, load: Load) -> None:
        self._limit = limit
        self._load_rows = load
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._wanted: dict[str, asyncio.Future[Entry]] = {}
        self._loading: dict[str, asyncio.Future[Entry]] = {}
        self._loader: asyncio.Task[None] | None = None
        self.hits = 0
        self.misses = 0

    async def get(self, key: str) -> Entry:
        """The entry, from memory or from the file. The caller may change it until it next awaits."""
        while True:
            entry = self._known.get(key)
            if entry is not None:
                self._known.move_to_end(key)
                self.hits += 1
                return entry
            self.misses += 1
            await asyncio.shield(self._load(key))

    def _load(self, key: str) -> asyncio.Future[Entry]:
        """Misses of one key share one load, and those of one turn, or of one load's time, one statement."""
        future = self._loading.get(key) or self._wanted.get(key)
        if future is None:
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
            if self._loader is None:
                self._loader = asyncio.ensure_future(self._load_wanted())
        return future

    async def _load_wanted(self) -> None:
        await asyncio.sleep(0)
        while self._wanted:
            self._loading, self._wanted = self._wanted, {}
            try:
                rows = await self._load_rows(json.dumps([*self._loading]))
            except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
                for future in self._loading.values():
                    if not future.done():
                        future.set_exception(error)
                        future.exception()  # nobody may be left to ask
                self._loading = {}
                continue
            found = {row[0]: row for row in rows}
            self._let_go(len(self._loading))
            for key, future in self._loading.items():
                entry = self._known[key] = _entry(found.get(key))
                if not future.done():
                    future.set_result(entry)
            self._loading = {}
        self._loader = None

    def _let_go(self, room: int) -> None:
        excess = len(self._known) + room - self._limit
        if excess <= 0:
            return
        # Pinned entries are the busy ones, so they are seldom among the oldest.
        for key in [*self._oldest(excess)]:
            del self._known[key]

    def _oldest(self, count: int) -> Iterable[str]:
        for key, entry in self._known.items():
            if count <= 0:
                return
            if not entry.dirty and not entry.flights:
                count -= 1
                yield key

    def kill(self, key: str, entry: Entry) -> None:
        """What this entry says never came to be: forget it, and let all who have seen it know."""
        entry.dead = True
        entry.dirty = False
        if self._known.get(key) is entry:
            del self._known[key]


def _entry(row: Row | None) -> Entry:
    if row is None:
        return Entry()
    _, value, fields, expires = row
    return Entry(
        value, {name: Field(*field) for name, field in _read_fields(fields).items()} if fields else None, expires
    )
