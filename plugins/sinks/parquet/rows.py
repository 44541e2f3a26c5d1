"""The columns of a record, tables of many, and the records that wait for their files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from ingestd.api.events import Record

from ..columns import Columns, parts, read

__all__ = [
    "DAY", "REPLACED", "ROW_GROUP_SIZE", "SCHEMA", "FileBuffer", "PartitionFile", "conform", "make_table", "pack",
    "records_of", "unpack", "with_changes", "without_ids",
]  # fmt: skip

_TIME = pa.timestamp("ms", tz="UTC")
# As pandas and pyarrow read them from the names of the folders. Other readers see strings.
_OF_FOLDER = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("tenant", pa.string()),
        ("key", pa.string()),
        ("timestamp", _TIME),
        ("anonymous_id", pa.string()),
        ("user_id", pa.string()),
        ("session_id", pa.string()),
        pa.field("received_at", _TIME, nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("record", pa.string(), nullable=False),
        pa.field("type", _OF_FOLDER, nullable=False),
        pa.field("date", _OF_FOLDER, nullable=False),
    ]
)
"""The columns of a file. `type` and `date` are in the names of its folders too."""


def make_table(rows: Sequence[Columns], records: Sequence[Record]) -> pa.Table:
    """The table of records with these columns."""
    times = [row.received_at(record) for row, record in zip(rows, records, strict=True)]
    columns = [
        pa.array([row.id for row in rows], pa.string()),
        pa.array([row.tenant for row in rows], pa.string()),
        pa.array([row.key for row in rows], pa.string()),
        pa.array([row.time for row in rows], _TIME),
        pa.array([row.anonymous_id for row in rows], pa.string()),
        pa.array([row.user_id for row in rows], pa.string()),
        pa.array([row.session_id for row in rows], pa.string()),
        pa.array(times, pa.int64()).cast(_TIME),
        pa.array([record.position for record in records], pa.int64()),
        pa.array([record.body for record in records], pa.string()),
        pa.array([record.type for record in records], _OF_FOLDER),
        pa.array([_date(at // DAY) for at in times], _OF_FOLDER),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def records_of(table: pa.Table) -> Iterator[Record]:
    columns = [table[name] for name in ("type", "received_at", "record", "position")]
    columns[1] = columns[1].cast(_TIME).cast(pa.int64())
    for type_, at, text, position in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Record(type_, at, text.encode(), position)


def with_changes(table: pa.Table, change: Callable[[Record], bytes | None]) -> tuple[pa.Table, int]:
    """The table with changed bodies of records, and their number. `change` returns None for a record that stays."""
    changed: dict[int, Record] = {}
    for index, record in enumerate(records_of(table)):
        body = change(record)
        if body is not None:
            changed[index] = replace(record, body=body)
    if changed:
        kept = table.filter(pa.array([index not in changed for index in range(len(table))]))
        records = [*changed.values()]
        table = pa.concat_tables([kept, make_table([*map(read, records)], records)])
    return table, len(changed)


def without_ids(table: pa.Table, ids: Collection[str]) -> pa.Table:
    """The records of the table that have none of these ids, each once."""
    seen: set[str] = set()
    chosen: list[bool] = []
    for id_ in table["id"].to_pylist():
        chosen.append(id_ not in seen and id_ not in ids)
        seen.add(id_)
    return table if all(chosen) else table.filter(pa.array(chosen, pa.bool_()))


def conform(table: pa.Table, folder: str) -> pa.Table:
    """The columns of the sink, of a table that another tool may have written in this folder."""
    columns = []
    for field in SCHEMA:
        if field.name in _OF_NAME:
            column = pa.array([_value_in(folder, field.name)] * len(table), field.type)
        else:
            column = table[field.name]
            if pa.types.is_timestamp(field.type) and column.type != field.type:
                column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=SCHEMA)


_OF_NAME = ("type", "date")


def _value_in(folder: str, name: str) -> str:
    """The value of a column in the name of a folder."""
    values = dict(part.split("=", 1) for part in folder.split("/"))
    return unquote(values[name])


ROW_GROUP_SIZE = 16 << 20
"""Bytes of JSON that wait before they are compressed, and the most that are read again at once."""
_OWN_FILE_SIZE = 1 << 20
"""Bytes of JSON for which a folder gets a file at once. The memory of an open file is a twentieth of it."""
DAY = 86_400_000  # milliseconds
REPLACED = "ingestd.replaced"
"""The name of the member of a file's metadata with the files that it replaces."""


class PartitionFile:
    """A Parquet file in memory, with the records of one type and date."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, SCHEMA, compression="zstd")
        self._content: pa.Buffer | None = None
        self.first = self.last = 0
        """The lowest and the highest position of its records."""

    def add(self, table: pa.Table) -> None:
        if not len(table):
            return
        bounds = pc.min_max(table["position"]).as_py()
        self.first = min(self.first or bounds["min"], bounds["min"])
        self.last = max(self.last, bounds["max"])
        self._writer.write_table(table)

    def content(self, replaced: Mapping[str, int] | None = None) -> pa.Buffer:
        """The whole file. No records can be added afterwards. `replaced` has names and sizes of files to name in it."""
        if self._content is None:
            if replaced is not None:
                self._writer.add_key_value_metadata({REPLACED: msgspec.json.encode(replaced)})
            self._writer.close()
            self._content = self._sink.getvalue()
        return self._content

    def without(self, ids: Collection[str]) -> PartitionFile | None:
        """A file without the records with these ids, or None if there are no others."""
        table = pq.read_table(pa.BufferReader(self.content()))
        rest = without_ids(table, ids)
        if rest is table:
            return self
        if not len(rest):
            return None
        other = PartitionFile()
        other.add(rest)
        return other


def pack(table: pa.Table, rows: int | None = None) -> pa.Buffer:
    """The table, compressed as a whole, or in parts of so many rows."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        # With one dictionary, which the format demands.
        writer.write_table(table.unify_dictionaries().combine_chunks(), max_chunksize=rows)
    return stream.getvalue()


def unpack(packed: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all()


class _Chunk:
    """Records of folders that have few of them, in the order of the folders, and compressed as a whole."""

    def __init__(self, table: pa.Table, folders: Sequence[str], sizes: Counter[str]) -> None:
        """`folders` has the folder of each row."""
        self.sizes = sizes
        """The bytes of JSON of each folder."""
        order = sorted(range(len(folders)), key=folders.__getitem__)
        self._spans: dict[str, tuple[int, int]] = {}
        """The first row of each folder, and the number of its rows."""
        for row, index in enumerate(order):
            first, count = self._spans.get(folders[index], (row, 0))
            self._spans[folders[index]] = first, count + 1
        self._packed = pack(table.take(pa.array(order)))

    def rows(self, folders: Iterable[str]) -> Iterator[tuple[str, pa.Table]]:
        """The rows of these folders. They do not keep those of other folders in memory."""
        wanted = [folder for folder in folders if folder in self._spans]
        if wanted:
            table = unpack(self._packed)
            for folder in wanted:
                first, count = self._spans[folder]
                yield folder, table.take(pa.array(range(first, first + count)))


class FileBuffer:
    """Records for the next files. Only one method runs at a time, also if they run on different threads.

    A folder with much gets a file in memory. Many folders with little, such as the days of a history, would need much
    memory for their files, so their records wait together, and become files one after the other in the end.
    """

    def __init__(self) -> None:
        self.size = 0
        """The bytes of JSON of all records."""
        self._files: dict[str, PartitionFile] = {}
        self._chunks: list[_Chunk] = []
        self._tables: list[pa.Table] = []
        """Records that wait to be compressed."""
        self._folders: list[str] = []
        """The folder of each of these records."""
        self._sizes: Counter[str] = Counter()
        """The bytes of JSON of these records, by folder."""
        self._positions: set[int] = set()
        self._is_finished = False

    def add(self, rows: Sequence[Columns], records: Sequence[Record]) -> None:
        """Add records that are not there yet. Those of a cancelled write may be."""
        new = [index for index, record in enumerate(records) if record.position not in self._positions]
        if not new:
            return
        if len(new) < len(records):
            rows, records = [rows[index] for index in new], [records[index] for index in new]
        table = make_table(rows, records)
        self._tables.append(table)
        for record, date in zip(records, table["date"].to_pylist(), strict=True):
            folder = _folder(record.type, date)
            self._folders.append(folder)
            self._sizes[folder] += len(record.body)
            self._positions.add(record.position)
            self.size += len(record.body)

    @property
    def needs_compressing(self) -> bool:
        return self._sizes.total() >= ROW_GROUP_SIZE

    def compress(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)  # of many chunks: copying them would take longer than compressing
        rows: dict[str, list[int]] = defaultdict(list)
        few: list[int] = []
        for index, folder in enumerate(self._folders):
            has_file = folder in self._files or (self._sizes[folder] >= _OWN_FILE_SIZE and not _is_last(folder))
            (rows[folder] if has_file else few).append(index)
        for folder, indexes in rows.items():
            file = self._files.setdefault(folder, PartitionFile())
            file.add(table if len(indexes) == len(table) else table.take(pa.array(indexes)))
        if few:
            folders = [self._folders[index] for index in few]
            sizes = Counter({folder: self._sizes[folder] for folder in folders})
            self._chunks.append(_Chunk(table.take(pa.array(few)), folders, sizes))
        self._tables, self._folders, self._sizes = [], [], Counter()

    def finish(self, done: Collection[str]) -> Iterator[tuple[str, PartitionFile]]:
        """The file of each folder that is not done. Only files with much stay in memory. No record can be added."""
        self.compress()
        sizes: Counter[str] = Counter()
        for chunk in self._chunks:
            sizes += chunk.sizes
            if not self._is_finished:
                for folder, table in chunk.rows(self._files):
                    self._files[folder].add(table)
        self._is_finished = True
        for folder, file in self._files.items():
            if folder not in done:
                yield folder, file
        rest = sorted(sizes.keys() - self._files.keys() - {*done}, key=lambda folder: (_is_last(folder), folder))
        for group in parts(rest, sizes.__getitem__, ROW_GROUP_SIZE):  # so that its records fit into memory
            tables: dict[str, list[pa.Table]] = defaultdict(list)
            for chunk in self._chunks:
                for folder, table in chunk.rows(group):
                    tables[folder].append(table)
            for folder in group:
                file = PartitionFile()
                file.add(pa.concat_tables(tables.pop(folder)))
                yield folder, file


def _is_last(folder: str) -> bool:
    """Whether it is stored behind the others: a compaction that finds an erasure must find all records before it."""
    return folder.startswith("type=erasure/")


@lru_cache(1000)
def _folder(type_: str, date: str) -> str:
    """The folder of a record, such as `type=event/date=2026-11-21`. The date is that of the receipt, in UTC."""
    return f"type={quote(type_, safe='')}/date={date}"


@lru_cache(10_000)
def _date(day: int) -> str:
    return datetime.fromtimestamp(day * DAY / 1000, UTC).date().isoformat()  # strftime has no zeros before a year
