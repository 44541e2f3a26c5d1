"""The `iceberg` sink: writes records to tables of Apache Iceberg, each once.

The sink is buffering. A flush is one commit of each table that it has records for, and always one of `events`. Its
snapshot names the positions up to which the table is complete. The table itself knows the last span of each partition:
after a crash the same span comes again, and the tables that have it are left out.

The libraries block and are slow to import, so all is done on a thread. Failures of the catalogue and of the storage
never count against a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options, PositiveDuration, PositiveSize, Secret, Size, remote_host
from ingestd.api.sink import Digest, Sink, Span

from .. import not_installed
from ..azure import signatures
from ..columns import digests_of, make_rows, read
from ..own_thread import OwnThread
from ..postgres import not_verified

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from .buffer import RowBuffer
    from .columns import Column
    from .positions import Positions
    from .tables import Tables
    from .upkeep import Upkeep

__all__ = ["IcebergOptions", "IcebergSink", "register_sinks"]


class IcebergOptions(Options):
    catalog: dict[str, Secret] = msgspec.field(default_factory=dict)
    """The properties of a catalogue of pyiceberg: `uri`, `warehouse`, and those of its storage, such as `s3.region`."""
    namespace: str = "ingestd"
    """The tables are in it, and it is created if it is missing."""
    flush_every: PositiveDuration = PositiveDuration.parse("10m")
    """How long the first record waits at most until it is committed."""
    max_size: PositiveSize = Size.parse("128MiB")
    """The most JSON of the records in memory until they are committed."""
    keep_snapshots: PositiveDuration = PositiveDuration.parse("2d")
    """How long a table can be read as it was."""


_FRESH = 3600.0
"""Seconds for which files without a commit are used again. An upkeep removes files that no snapshot has a day later."""


_READ = "id, type, tenant, key, received_at, timestamp, anonymous_id, user_id, session_id, position, record"
"""The columns that models read."""


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("iceberg", IcebergSink)


class IcebergSink(Sink):
    Options = IcebergOptions
    buffering = True
    can_verify = True
    needs_schemas = True

    def __init__(self, name: str, options: IcebergOptions) -> None:
        super().__init__(name, options)
        if "uri" not in options.catalog:
            raise ConfigError(f"sinks.{name}.catalog: needs uri, such as sqlite:////var/lib/ingestd/lake.db")
        if "warehouse" not in options.catalog and str(options.catalog["uri"]).startswith(("sqlite", "postgresql")):
            raise ConfigError(f"sinks.{name}.catalog: needs warehouse, such as file:///var/lib/ingestd/lake")
        if find_spec("pyiceberg") is None or find_spec("pyarrow") is None:
            raise not_installed(name, "pyiceberg", "iceberg")
        self.flush_after = float(options.flush_every)
        self._most = int(options.max_size)
        self._thread = OwnThread(f"iceberg-{name}")
        self._tables: Tables | None = None
        self._columns: dict[str, list[Column]] = {}
        self._buffer: RowBuffer | None = None
        self._written: dict[str, tuple[float, object, list[DataFile]]] = {}
        """The files of the tables that a flush has not committed, with the time and the table for which they were
        written."""
        self._risks: list[str] = []

    @property
    def tables(self) -> Tables:
        """The tables, for a thread. To import what they need takes seconds."""
        if self._tables is None:
            from .tables import Tables

            options = self.options
            properties = {key: str(value) for key, value in options.catalog.items()}
            self._tables = Tables(
                properties, options.namespace, self.name, float(options.keep_snapshots), _secrets(properties)
            )
        return self._tables

    @property
    def records(self) -> str:
        """The tables in the SQL of DuckDB. Only a catalogue in a database has them where its options say."""
        catalog = {key: str(value) for key, value in self.options.catalog.items()}
        if catalog["uri"].startswith("http") or "warehouse" not in catalog:
            return ""
        folder = f"{catalog['warehouse'].rstrip('/')}/{self.options.namespace}".replace("'", "''")
        names = ("events", "identifies", "attributions", "records")
        tables = [f"FROM iceberg_scan('{folder}/{name}') SELECT {_READ}" for name in names]
        return f"(FROM ({' UNION ALL '.join(tables)}) SELECT *, CAST(received_at AT TIME ZONE 'UTC' AS DATE) AS date)"

    def upkeep(self) -> Upkeep:
        """The upkeep of the tables, for a thread."""
        from .upkeep import Upkeep

        self._open()
        assert self._buffer is not None
        return Upkeep(self.tables, self._buffer)

    def risks(self) -> Sequence[str]:
        found = [
            f"sinks.{self.name}: {each}; its schema and partitions are as the sink needs them" for each in self._risks
        ]
        for key in ("uri", "s3.endpoint"):
            uri = str(self.options.catalog.get(key, ""))
            host = remote_host(uri) if uri.startswith("http://") else None
            if host is not None:
                found.append(f"sinks.{self.name}.catalog: {key} names {host} without TLS; use a URL with https")
        uri = str(self.options.catalog["uri"])
        host = not_verified(uri) if uri.startswith("postgresql") else None
        if host is not None:
            found.append(
                f"sinks.{self.name}.catalog: the certificate of {host} is not verified, so another server could take"
                " its place and get the password; add sslmode=verify-full, and sslrootcert=FILE"
            )
        return found

    async def open(self) -> None:
        self._buffer = None
        self._written = {}
        await self._thread.do(self._open)

    def _open(self) -> None:
        from .buffer import RowBuffer
        from .columns import columns_of_events
        from .tables import types_of

        self.tables.open()
        events = self.tables.load("events")
        columns = columns_of_events(self.schemas, types_of(events))
        self.tables.add_columns(events, [each for some in columns.values() for each in some])
        self._columns, self._buffer = columns, RowBuffer(columns)

    async def write(self, batch: Sequence[Record]) -> None:
        await self._thread.done()
        found, refused = await make_rows(batch, read)
        if refused:
            raise SinkReject(refused)
        assert self._buffer is not None
        self._buffer.add([*found.values()], batch)
        if self._buffer.needs_work:
            await self._thread.do(self._buffer.work)

    def is_full(self) -> bool:
        return self._buffer is not None and self._buffer.size >= self._most

    async def flush(self, span: Span | None) -> None:
        assert self._buffer is not None
        await self._thread.do(self._store, self._buffer, span)
        self._buffer, self._written = type(self._buffer)(self._columns), {}

    def _store(self, buffer: RowBuffer, span: Span | None) -> None:
        from .columns import TABLES

        if not buffer.size:
            return
        buffer.finish()
        for name in TABLES:
            if buffer.has(name) or (name == "events" and span is not None):
                self._store_rows(name, buffer, span)

    def _store_rows(self, name: str, buffer: RowBuffer, span: Span | None) -> None:
        from ..parquet.rows import without_ids
        from .tables import identity

        tables = self.tables
        data = [each for some in self._columns.values() for each in some] if name == "events" else ()
        table = tables.ready(name, data)
        positions = tables.positions(table)
        if span is not None and positions.spans(span.partition).get(positions.key(span.partition)) == span:
            return
        if _may_have(table, span, positions):
            files = [
                file
                for part in buffer.parts(name)
                for file in tables.write(table, without_ids(part, self._present(table, part)))
            ]
        else:
            at, of, files = self._written.get(name, (0.0, None, []))
            if time.monotonic() - at > _FRESH or of != identity(table) or not files:
                files = [file for part in buffer.parts(name) for file in tables.write(table, part)]
                self._written[name] = time.monotonic(), identity(table), files
        if files or span is not None:
            tables.commit(table, files, span)

    def _present(self, table: Table, rows: pa.Table) -> set[str]:
        """Which of these records the table has already."""
        import pyarrow.compute as pc

        found = pc.min_max(rows["received_at"].cast("int64")).as_py()
        ids = {*rows["id"].to_pylist()}
        return {
            each for each, _ in self.tables.ids(table, found["min"] // 1000, found["max"] // 1000 + 1) if each in ids
        }

    async def check(self) -> None:
        await self._thread.do(self._check)

    def _check(self) -> None:
        self.tables.check()
        self._risks = [*self.tables.risks()]

    async def digests(self, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        return await self._thread.do(lambda: digests_of(self._received(begin, end), step))

    async def ids(self, begin: int, end: int) -> Sequence[str]:
        return await self._thread.do(lambda: [id_ for id_, _ in self._received(begin, end)])

    def _received(self, begin: int, end: int) -> Iterator[tuple[str, int]]:
        from .columns import TABLES

        for name in TABLES:
            table = self.tables.find(name)
            if table is not None:
                yield from self.tables.ids(table, begin, end)

    async def close(self) -> None:
        if self._tables is not None:
            await self._thread.do(self._tables.close)
        await self._thread.close()
        self._buffer, self._written = None, {}


def _may_have(table: Table, span: Span | None, positions: Positions) -> bool:
    """Whether the table may have records of a flush: after another order than that of the journal, or at the first.

    Another sink may have written them, such as this one under a former name.
    """
    present = {} if span is None else positions.spans(span.partition)
    if span is None or positions.key(span.partition) not in present:
        return table.current_snapshot() is not None
    return any(span.first <= each.last or span.at < each.at for each in present.values())


def _secrets(properties: Mapping[str, str]) -> list[str]:
    """The texts of a catalogue's properties that may be secret."""
    words = ("secret", "password", "token", "credential", "key", "sas", "account", "authorization")
    uri = urlsplit(properties["uri"])
    given = [*properties.items(), *parse_qsl(uri.query)]
    found = [text for key, text in given if any(word in key.lower() for word in words)]
    found += [unquote(each) for each in uri.netloc.rpartition("@")[0].split(":")]
    found += signatures(properties.get("adls.sas-token", ""))
    return [text for text in found if len(text) > 4]
