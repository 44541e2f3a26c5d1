"""The records that the journal has, their messages, and the persons it has forgotten.

So no import stores an event twice, or brings a person back. A record without state is stored once more, with state.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from ingestd.api.events import Record
from ingestd.api.imported import completed
from ingestd.api.journal import Journal
from ingestd.api.times import parse_time
from ingestd.support.record_head import RecordHead, read_head

from ..journal_reading import pages_of, records_of

__all__ = ["FormerCopies", "KnownRecords"]

_MANY = 1000  # digests that are written together
_CACHE = 32 << 10  # KiB in memory; the rest is in a temporary file, which SQLite removes
_DAY = 86_400_000


class KnownRecords:
    """Digests of record ids, messages and forgotten persons, on disk.

    A message has the time of its last receipt, and one for each day with a receipt; a person has the time of the
    erasure. A record that lacks state has its position until the import has met it, and any other has 0.
    """

    def __init__(self) -> None:
        self._new: dict[bytes, int] = {}
        """Digests that are not in the database yet: writing many at once is fastest."""
        self._some_lack_state = False
        self._database = sqlite3.connect("")
        self._database.executescript(
            f"PRAGMA cache_size = -{_CACHE}; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE known (digest BLOB PRIMARY KEY, at INTEGER) WITHOUT ROWID"
        )

    def close(self) -> None:
        self._database.close()

    async def read(self, journal: Journal, show: Callable[[int], None]) -> list[int]:
        """Learn all records of the journal. `show` gets the positions that were reached.

        Returns the positions of records without state of which the journal has a later copy with state.
        """
        former: list[int] = []
        async for page in pages_of(journal, 0, await journal.last()):
            self._add(self._digests(page, former))
            for record in page:
                self.add_erasure(record)
            show(page[-1].position)
        return former

    def _digests(self, records: Iterable[Record], former: list[int]) -> Iterable[tuple[bytes, int]]:
        for record in records:
            head = read_head(record.body)
            if head.id is not None:
                digest, position = _of_id(head.id), record.position if _lacks_state(head) else 0
                if position:
                    self._some_lack_state = True
                elif self._some_lack_state and (earlier := self._find(digest)):
                    former.append(earlier)
                yield digest, position
            if head.message_id is not None and head.tenant is not None:
                yield from _receipts(head.tenant, head.message_id, parse_time(head.received_at) or 0)

    def _add(self, digests: Iterable[tuple[bytes, int]]) -> None:
        self._new.update(digests)
        if len(self._new) >= _MANY:
            self._database.executemany("INSERT OR REPLACE INTO known VALUES (?, ?)", self._new.items())
            self._new.clear()

    def without_state(self, record_id: str) -> int | None:
        """The position of a record whose import changed no state; 0 for any other, None if the record is unknown."""
        return self._find(_of_id(record_id))

    def has_message(self, tenant: str, message_id: str, near: int | None = None) -> bool:
        """Whether this message is known; with `near`, whether it was received within a day of that time."""
        if near is None:
            return self._find(_of_message(tenant, message_id)) is not None
        day = near // _DAY
        times = (self._find(_of_message(tenant, message_id, each)) for each in (day, day - 1, day + 1))
        return any(at is not None and abs(near - at) <= _DAY for at in times)

    def has_forgotten(self, tenant: str, anonymous_id: str | None, user_id: str | None, at: int) -> bool:
        """Whether the person of a record was forgotten after it was received at that time.

        A forgotten user's visitor may be another user's now.
        """
        kinds = [("user", user_id), ("visitor", anonymous_id)]
        if user_id is None:
            kinds.append(("visitor of a user", anonymous_id))
        found = [self._find(_digest(kind, tenant, name)) for kind, name in kinds if name is not None]
        return any(erased_at is not None and at <= erased_at for erased_at in found)

    def add(self, record_id: str, message: tuple[str, str] | None = None, at: int = 0) -> None:
        """`message` is the tenant and the id of the message, which was received `at` that time."""
        of_message = _receipts(*message, at) if message is not None else ()
        self._add([(_of_id(record_id), 0), *of_message])

    def add_erasure(self, record: Record) -> None:
        """Note the persons of an erasure. Any other record changes nothing."""
        if record.type == "erasure":
            self._add(_of_erasure(record.decode()))

    def _find(self, digest: bytes) -> int | None:
        if digest in self._new:
            return self._new[digest]
        row = self._database.execute("SELECT at FROM known WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])


def _lacks_state(head: RecordHead) -> bool:
    """Whether an import has stored the record and changed no state. A blank record changes none anyway."""
    mark = msgspec.json.decode(head.mark) if head.mark else None
    return isinstance(mark, dict) and mark.get("state") is False and not mark.get("completed") and not head.erased


def _of_id(record_id: str) -> bytes:
    return _digest("record", "", record_id)


def _of_message(tenant: str, message_id: str, day: int | None = None) -> bytes:
    return _digest("message" if day is None else f"message {day}", tenant, message_id)


def _receipts(tenant: str, message_id: str, at: int) -> Iterator[tuple[bytes, int]]:
    yield _of_message(tenant, message_id), at
    yield _of_message(tenant, message_id, at // _DAY), at


def _of_erasure(erasure: Mapping[str, Any]) -> Iterable[tuple[bytes, int]]:
    at, tenant, user_id = parse_time(erasure["erasedAt"]) or 0, erasure["tenant"], erasure["userId"]
    kind = "visitor" if user_id is None else "visitor of a user"
    for anonymous_id in erasure["anonymousIds"]:
        yield _digest(kind, tenant, anonymous_id), at
    if user_id is not None:
        yield _digest("user", tenant, user_id), at


def _digest(kind: str, tenant: str, text: str) -> bytes:
    named = f"{kind}:{len(tenant)}:{tenant}{text}"
    return blake2b(named.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class FormerCopies:
    """Marks former copies in the journal, so that exports have each record once, as it was stored last.

    An import that ends before that leaves both copies, which the next one marks.
    """

    def __init__(self) -> None:
        self._positions: dict[Journal, list[int]] = {}

    def add(self, journal: Journal, position: int) -> None:
        self._positions.setdefault(journal, []).append(position)

    async def mark(self) -> None:
        """Mark the copies that were added. Raises `Unavailable`."""
        for journal, positions in self._positions.items():
            records = [
                each for first, last in _runs(sorted(positions)) async for each in records_of(journal, first - 1, last)
            ]
            await journal.replace([(each, msgspec.json.encode(completed(each.decode()))) for each in records])
        self._positions.clear()


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each run of consecutive positions, as its first and last one."""
    first = before = positions[0]
    for position in [*positions[1:], sys.maxsize]:
        if position != before + 1:
            yield first, before
            first = position
        before = position
