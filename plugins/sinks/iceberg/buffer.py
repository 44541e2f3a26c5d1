"""The rows that wait for a flush, compressed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ingestd.api.events import Record

from ..columns import Columns
from ..parquet.rows import pack, unpack
from .columns import TABLES, Column, RowMaker, row_maker, table_of
from .sorting import sorted_rows

__all__ = ["RowBuffer"]

_AT_ONCE = 4 << 20
_PART = 32 << 20
"""Bytes of JSON that are sorted and become files together. Memory for a few times as much is needed for them."""


class RowBuffer:
    """Only one method runs at a time, also if they run on different threads."""

    def __init__(self, columns: dict[str, list[Column]]) -> None:
        """`columns` are those of the data of each event key."""
        self.size = 0
        """The bytes of JSON of all records."""
        self._makers = {name: row_maker(tuple(own)) for name, own in TABLES.items()}
        self._of_key = {key: row_maker((*TABLES["events"], *own)) for key, own in columns.items()}
        self._rows: list[Columns] = []
        self._records: list[Record] = []
        """Records that are not in a table yet. It takes less time to make larger tables."""
        self._tables: dict[str, dict[RowMaker, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
        self._waiting = self._unpacked = 0
        """The bytes of JSON of those records, and of those that are not compressed yet."""
        self._packed: dict[str, list[pa.Buffer]] = defaultdict(list)
        self._last: dict[str, pa.Table] = {}
        self._positions: set[int] = set()

    def add(self, rows: Sequence[Columns], records: Sequence[Record]) -> None:
        """Add records that are not there yet. Those of a cancelled write may be."""
        for row, record in zip(rows, records, strict=True):
            if record.position not in self._positions:
                self._positions.add(record.position)
                self._rows.append(row)
                self._records.append(record)
                self._waiting += len(record.body)
                self.size += len(record.body)

    @property
    def needs_work(self) -> bool:
        return self._waiting >= _AT_ONCE

    def work(self) -> None:
        """Make tables of the records, and compress many of them. It may take a while."""
        for name, maker, table in self.made(self._rows, self._records):
            self._tables[name][maker].append(table)
        self._rows, self._records = [], []
        self._unpacked += self._waiting
        self._waiting = 0
        if self._unpacked >= _PART:
            for name, rows in self._sorted():
                self._packed[name].append(pack(rows))

    def made(self, rows: Sequence[Columns], records: Sequence[Record]) -> Iterator[tuple[str, RowMaker, pa.Table]]:
        """The rows of records: those with the same columns together, with the name of their table and their maker."""
        groups: dict[tuple[str, RowMaker], tuple[list[Columns], list[Record]]] = {}
        for row, record in zip(rows, records, strict=True):
            name = table_of(record.type)
            maker = self._makers[name]
            if record.type == "event" and row.key is not None:
                maker = self._of_key.get(row.key, maker)
            some = groups.setdefault((name, maker), ([], []))
            some[0].append(row)
            some[1].append(record)
        for (name, maker), some in groups.items():
            yield name, maker, maker.table(*some)

    def finish(self) -> None:
        """Make tables of all records. The last ones are not compressed."""
        self.work()
        self._last |= dict(self._sorted())

    def _sorted(self) -> Iterator[tuple[str, pa.Table]]:
        for name, by_maker in self._tables.items():
            tables = [pa.concat_tables(some) for some in by_maker.values()]
            yield (
                name,
                sorted_rows(
                    pa.concat_tables(tables, promote_options="default").combine_chunks(), first=("date", "tenant")
                ),
            )
        self._tables.clear()
        self._unpacked = 0

    def parts(self, name: str) -> Iterator[pa.Table]:
        """The rows of a table, in sorted parts that fit into memory."""
        yield from map(unpack, self._packed.get(name, ()))
        if name in self._last:
            yield self._last[name]

    def has(self, name: str) -> bool:
        return name in self._packed or name in self._last
