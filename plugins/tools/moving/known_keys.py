"""The partitions of state entries. The key of an entry is a hash of its tenant and another text, so both are tried."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ingestd.api.contents import Entry, namespace_of
from ingestd.api.store import key_digest, tenant_digest

__all__ = ["EVERYWHERE", "HOME", "KnownKeys", "texts_in"]

HOME = 0
"""The index of the partition that has what belongs to no tenant."""

EVERYWHERE = -1
"""The owner of entries that all partitions have, because their tenant is unknown."""

_ADD = "INSERT INTO known VALUES (?, ?) ON CONFLICT DO UPDATE SET owner = excluded.owner"
_KEEP = "INSERT INTO known VALUES (?, ?) ON CONFLICT DO UPDATE SET owner = -1 WHERE owner != excluded.owner"
_OWNER = "SELECT owner FROM known WHERE digest = ?"
_TAG = 32  # characters of a tenant's digest in front of a value


class KnownKeys:
    """The keys of all tenants and texts that were seen. They are in a temporary file, because there may be millions."""

    def __init__(self, index_of_tenant: Callable[[str], int]) -> None:
        self.tenants: set[str] = set()
        self.is_complete = False
        """Whether all records were added. Only then it is known that there are no other tenants."""
        self.moved: Mapping[int, str] = {}
        """The tenants that were moved between partitions, by the numbers in their keys."""
        self._index_of_tenant = index_of_tenant
        self._tags: dict[str, str] = {}
        self._file = sqlite3.connect("", isolation_level=None)  # a file without name, which SQLite removes at the end
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("CREATE TABLE known (digest BLOB PRIMARY KEY, owner INTEGER NOT NULL) WITHOUT ROWID")
        self._file.execute("BEGIN")

    def close(self) -> None:
        self._file.close()

    def index_of(self, tenant: str | None) -> int:
        return self._index_of_tenant(tenant) if tenant else HOME

    def add(self, tenant: str, texts: Iterable[str]) -> None:
        """Add the keys of a tenant; an empty one stands for what belongs to no tenant."""
        owner = self.index_of(tenant)
        if tenant and tenant not in self.tenants:
            self.tenants.add(tenant)
            self._tags[tenant_digest(tenant)] = tenant
        rows = [(bytes.fromhex(key_digest(tenant, text)), owner) for text in {"", *texts}]
        self._file.executemany(_ADD, rows)

    def keep(self, entries: Iterable[Entry], owner: int) -> None:
        """Add the keys of entries that a partition of the target has already. What was added otherwise comes later."""
        self._file.executemany(_KEEP, [(_digest(entry), owner) for entry in entries])

    def learn(self, entry: Entry) -> None:
        """Add what an entry tells: a value may begin with the digest of its tenant."""
        if entry.value is not None and (tenant := self._tags.get(entry.value[:_TAG])) is not None:
            self.add(tenant, [entry.value[_TAG:]])
            self._file.execute(_ADD, (_digest(entry), self.index_of(tenant)))

    def owners(self, entries: Sequence[Entry]) -> list[int | None]:
        """The index of each entry's partition, or `EVERYWHERE`; None if it is unknown."""
        otherwise = None
        if self.is_complete and len(self.tenants) == 1:
            (only,) = self.tenants
            otherwise = self.index_of(only)
        found = [self._file.execute(_OWNER, (_digest(entry),)).fetchone() for entry in entries]
        known = [otherwise if row is None else row[0] for row in found]
        if not self.moved:
            return known
        names = [self.moved.get(namespace_of(entry.key)) for entry in entries]
        return [owner if name is None else self.index_of(name) for name, owner in zip(names, known, strict=True)]


def _digest(entry: Entry) -> bytes:
    return bytes.fromhex(entry.key.partition(":")[2])


def texts_in(value: Any) -> Iterator[str]:
    """All texts and numbers in the JSON value of a record. Some of them are the ids that keys are made of."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
