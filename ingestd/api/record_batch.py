"""Records that were read together. `Record` objects are made only when they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, starmap
from typing import overload

import msgspec

from ingestd.support.ids import named_uuid

from .events import Record

__all__ = ["Batch", "Records", "batch_token", "length_of", "lines_of"]


class Records(Sequence[Record]):
    """Records in columns. `lines` has all bodies, each with a line break after it; `lengths` has their lengths.

    Making a `Record` costs as much as reading it. A sink that writes lines needs no `Record`.
    """

    __slots__ = ("_ats", "_ends", "_lines", "_made", "_positions", "_types")

    def __init__(
        self,
        types: Sequence[str],
        ats: Sequence[int],
        positions: Sequence[int],
        lengths: Sequence[int],
        lines: bytes,
    ) -> None:
        self._types, self._ats, self._positions, self._lines = types, ats, positions, lines
        self._ends = [end + number for number, end in enumerate(accumulate(lengths))]
        """The index of the line break after each body."""
        self._made: list[Record] | None = None

    @property
    def length(self) -> int:
        """The total size of the bodies in bytes."""
        return len(self._lines) - len(self._ends)

    def lines(self) -> bytes | None:
        """The bodies, each with a line break after it, or None if a body contains a line break."""
        find = self._lines.find
        return self._lines if [find(b"\n", start) for start in self._starts()] == self._ends else None

    def _starts(self) -> list[int]:
        """The index of the start of each body."""
        return [0, *[end + 1 for end in self._ends]][:-1]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        wanted = range(len(self))[index]
        if isinstance(wanted, int):
            return self._one(wanted) if self._made is None else self._made[wanted]
        if wanted == range(len(self)):
            return self
        return self._all()[index] if wanted else ()

    def __iter__(self) -> Iterator[Record]:
        return iter(self._all())

    def _one(self, at: int) -> Record:
        start = self._ends[at - 1] + 1 if at else 0
        return Record(self._types[at], self._ats[at], self._lines[start : self._ends[at]], self._positions[at])

    def _all(self) -> list[Record]:
        if self._made is None:
            bodies = [self._lines[start:end] for start, end in zip(self._starts(), self._ends, strict=True)]
            self._made = [*starmap(Record, zip(self._types, self._ats, bodies, self._positions, strict=True))]
        return self._made


def _id_of(record: Record) -> str:
    """The id of a record, or its position if its body has no id."""
    try:
        id_ = record.envelope().id
    except (msgspec.DecodeError, UnicodeDecodeError):  # the record of a plugin, and the sink must reject it
        id_ = None
    return id_ or str(record.position)


def batch_token(ids: Iterable[str], partition: str = "") -> str:
    """The token of a batch with records of these ids, or of a part of a batch. `partition` is that of the batch."""
    names = [f"partition {partition}"] if partition else []
    return named_uuid(*names, *ids)


class Batch(Sequence[Record]):
    """The records of one write to a sink with stable batches."""

    __slots__ = ("_token", "partition", "records")

    def __init__(self, records: Sequence[Record], partition: str = "") -> None:
        self.records = records
        self.partition = partition
        """The name of the partition that the records are from; empty if the store has a single one."""
        self._token: str | None = None

    @property
    def token(self) -> str:
        """A UUID made of the ids of the records: the same records in the same order always have the same token.

        Batches of different partitions have different tokens.
        """
        if self._token is None:
            self._token = batch_token(map(_id_of, self.records), self.partition)
        return self._token

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


def length_of(records: Sequence[Record]) -> int:
    """The total size of the bodies in bytes."""
    if isinstance(records, Batch):
        records = records.records
    if isinstance(records, Records):
        return records.length
    return sum([len(record.body) for record in records])


def lines_of(records: Sequence[Record]) -> bytes:
    """Each body as one line. In JSON, line breaks occur only between tokens, so a space can replace them."""
    if isinstance(records, Batch):
        records = records.records
    lines = records.lines() if isinstance(records, Records) else None
    if lines is not None:
        return lines
    bodies = [record.body for record in records]
    if b"\n" in b"".join(bodies):
        bodies = [body.replace(b"\n", b" ") for body in bodies]
    return b"\n".join([*bodies, b""])
