"""The `clickhouse` sink: inserts each record as a row of a table, over the HTTP interface.

A batch is one insert. Its token is made of the ids of the rows, as the token of the batch is, so a server that knows
tokens stores a repeated batch once. The table replaces rows with the same id, so repeated records in other batches
disappear with the next merge.

If the server refuses a row, the sink looks at the table again: a column may have changed, which is no fault of a
record. Otherwise it finds the faulty records by the row that the server names, or by halving, and inserts the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ingestd.api import hookimpl
from ingestd.api.errors import SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Options, Secret, Url, has_credentials, password_in_clear
from ingestd.api.record_batch import Batch, batch_token
from ingestd.api.sink import Digest, Sink

from ..columns import DataRefused, make_rows, sift

if TYPE_CHECKING:
    from .client import Server
    from .rows import Row
    from .table import Layout, Table

__all__ = ["ClickHouseOptions", "ClickHouseSink", "register_sinks"]


class ClickHouseOptions(Options):
    url: Url
    """The HTTP interface: `http://…:8123` or `https://…:8443`, perhaps with user and password."""
    user: str | None = None
    password: Secret | None = None
    database: str = "default"
    """The database of the table. It must exist."""
    table: str = "ingestd_records"
    """Created if missing."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    former: ClassVar[Mapping[str, str]] = {"async_insert": "it is always false now, since the sink sends batches"}


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("clickhouse", ClickHouseSink)


class ClickHouseSink(Sink):
    Options = ClickHouseOptions
    can_verify = True
    engine = "clickhouse"
    stable_batches = True

    def __init__(self, name: str, options: ClickHouseOptions) -> None:
        super().__init__(name, options)
        from .client import Server  # here, because most commands do not need Tornado's client
        from .table import Table

        path = f"sinks.{name}"
        self._server: Server = Server(options, path)
        self._table: Table = Table(options.database, options.table, path)
        self.records = self._table.quoted
        """The table as it stands in SQL."""
        self._layout: Layout | None = None
        """None until the table has been inspected, and after a failure."""
        self._partition = ""
        """The partition of the batch in progress."""

    def risks(self) -> Sequence[str]:
        options = self.options
        if urlsplit(options.url).scheme == "https" or not (options.password or has_credentials(options.url)):
            return ()
        return password_in_clear(f"sinks.{self.name}.url", options.url, "use https")

    async def open(self) -> None:
        self._layout = None
        await self._current_layout()

    async def write(self, batch: Sequence[Record]) -> None:
        from .rows import row_of

        layout = await self._current_layout()
        rows, refused = await make_rows(batch, partial(row_of, layout=layout))
        self._partition = batch.partition if isinstance(batch, Batch) else ""
        is_whole = True
        try:
            await self._insert([*rows.values()], layout)
        except DataRefused:
            if await self._current_layout() != layout:
                raise SinkRetry("the table has changed") from None
            found, is_whole = await sift(rows, partial(self._insert, layout=layout))
            self._layout = layout
            refused |= found
        if refused:
            raise SinkReject(refused, written=len(batch) if is_whole else 0)

    async def check(self) -> None:
        await self._table.check(self._server)

    async def digests(self, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        return await self._table.digests(self._server, begin, end, step)

    async def ids(self, begin: int, end: int) -> Sequence[str]:
        return await self._table.ids(self._server, begin, end)

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        return await self._server.rows(text)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[ClickHouseSink]:
        """ClickHouse has no transactions: other runs may change something at the same time."""
        yield self

    async def execute(self, statements: Sequence[str]) -> None:
        """Carry out one statement after the other."""
        for statement in statements:
            await self._server.execute(statement)

    async def _current_layout(self) -> Layout:
        """The layout of the table, which is created if it is missing."""
        if self._layout is None:
            self._layout = await self._table.ensure(self._server)
        return self._layout

    async def _insert(self, rows: Sequence[Row], layout: Layout) -> None:
        from .rows import lines_of

        if not rows:
            return
        settings = dict(layout.settings)
        if "insert_deduplication_token" in layout.known:
            settings["insert_deduplication_token"] = batch_token((each.id for each in rows), self._partition)
        self._layout = None  # until the insert succeeds
        await self._server.insert(self._table.insert, settings, lines_of(rows))
        self._layout = layout
