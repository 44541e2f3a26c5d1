"""The ids of all records that the journal has, and their messages, so that no import stores an event twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from ingestd.api.journal import Journal
from ingestd.api.times import parse_time

__all__ = ["KnownRecords"]

_PAGE = 500
_MANY = 1000  # digests that are written together
_CACHE = 32 << 10  # KiB in memory; the rest is in a temporary file, which SQLite removes
_DAY = 86_400_000


class _Head(msgspec.Struct, rename="camel", gc=False):
    """The members that identify a record. A plugin's record may have any values."""

    id: Any = None
    tenant: Any = None
    message_id: Any = None
    received_at: Any = None


_decode = msgspec.json.Decoder(_Head).decode


class KnownRecords:
    """Digests of record ids and messages, on disk. A message has the time of its receipt."""

    def __init__(self) -> None:
        self._new: dict[bytes, int] = {}
        """Digests that are not in the database yet: writing many at once is fastest."""
        self._database = sqlite3.connect("")
        self._database.executescript(
            f"PRAGMA cache_size = -{_CACHE}; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE known (digest BLOB PRIMARY KEY, at INTEGER) WITHOUT ROWID"
        )

    def close(self) -> None:
        self._database.close()

    async def read(self, journal: Journal, show: Callable[[int], None]) -> None:
        """Learn all records of the journal. `show` gets the positions that were reached."""
        after, last = 0, await journal.last()
        while after < last and (records := await journal.read(after, _PAGE)):
            self._add(self._digests(map(_head, [record.body for record in records])))
            after = records[-1].position
            show(after)

    def _digests(self, heads: Iterable[_Head]) -> Iterable[tuple[bytes, int]]:
        for head in heads:
            if isinstance(head.id, str):
                yield _of_id(head.id), 0
            if isinstance(head.message_id, str) and isinstance(head.tenant, str):
                at = parse_time(head.received_at) if isinstance(head.received_at, str) else None
                yield _of_message(head.tenant, head.message_id), at or 0

    def _add(self, digests: Iterable[tuple[bytes, int]]) -> None:
        self._new.update(digests)
        if len(self._new) >= _MANY:
            self._database.executemany("INSERT OR REPLACE INTO known VALUES (?, ?)", self._new.items())
            self._new.clear()

    def has(self, record_id: str) -> bool:
        return self._find(_of_id(record_id)) is not None

    def has_message(self, tenant: str, message_id: str, near: int | None = None) -> bool:
        """Whether this message is known; with `near`, whether it was received within a day of that time."""
        at = self._find(_of_message(tenant, message_id))
        return at is not None and (near is None or abs(near - at) <= _DAY)

    def add(self, record_id: str, message: tuple[str, str] | None = None, at: int = 0) -> None:
        """`message` is the tenant and the id of the message, which was received `at` that time."""
        self._add([(_of_id(record_id), 0), *([(_of_message(*message), at)] if message is not None else [])])

    def _find(self, digest: bytes) -> int | None:
        if digest in self._new:
            return self._new[digest]
        row = self._database.execute("SELECT at FROM known WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])


def _head(body: bytes) -> _Head:
    try:
        return _decode(body)
    except msgspec.DecodeError:  # a plugin's record may be another value than an object
        return _Head()


def _of_id(record_id: str) -> bytes:
    return blake2b(record_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _of_message(tenant: str, message_id: str) -> bytes:
    text = f"{len(tenant)}:{tenant}{message_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"message").digest()
