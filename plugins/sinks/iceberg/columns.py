"""The tables of a lake, their columns, and the rows of records.

The first columns are those of the files of the sink `parquet`. Then come the members that the models of a warehouse
name: each is in the record, and has a column with a type besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.api.events import Record
from ingestd.support.column_names import snake_case
from ingestd.support.record_head import NO_MEMBER, members_reader
from ingestd.support.schema_members import OF_EVENT, Kind, Schemas

from ..columns import Columns
from ..parquet.rows import SCHEMA, make_table

__all__ = ["ENVELOPE", "TABLES", "Column", "RowMaker", "arrow_type", "columns_of_events", "row_maker", "table_of"]

TIME = pa.timestamp("us", tz="UTC")  # the type of the format has microseconds
_ARROW: Mapping[Kind, pa.DataType] = {
    "text": pa.string(), "json": pa.string(), "decimal": pa.decimal128(38, 18), "integer": pa.int64(),
    "boolean": pa.bool_(), "time": TIME, "date": pa.date32(), "day": pa.date32(),
}  # fmt: skip
_READ: Mapping[Kind, Any] = {
    "text": str | None, "json": msgspec.Raw, "decimal": int | float | None, "integer": int | None,
    "boolean": bool | None, "time": Annotated[datetime, msgspec.Meta(tz=True)] | None, "date": date | None,
}  # fmt: skip
_FIRST, _LAST = (pa.scalar(time, TIME) for time in (datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)))
_MOST = 10**20
"""A larger number has no room in its column. The record has it."""


class Column(NamedTuple):
    """A column of a member. `path` leads to it from the record."""

    name: str
    kind: Kind
    path: tuple[str, ...]


ENVELOPE: pa.Schema = pa.schema(
    [
        field.with_type(TIME if pa.types.is_timestamp(field.type) else field.type)
        for field in SCHEMA
        if field.name not in {"type", "date"}
    ]
).append(pa.field("type", pa.string(), nullable=False))
"""The columns that each table has."""

_OF_EVENT = [Column(name, kind, path) for name, kind, path, _ in OF_EVENT]
_OF_IDENTIFY = [
    *(each for each in _OF_EVENT if each.name != "dispatch_id"),
    Column("linked", "boolean", ("linked",)),
    Column("email", "text", ("traits", "email")),
    Column("first_name", "text", ("traits", "firstName")),
    Column("last_name", "text", ("traits", "lastName")),
]
_OF_ATTRIBUTION = [
    Column("order_id", "text", ("orderId",)),
    Column("order_event_id", "text", ("orderEventId",)),
    Column("model", "text", ("model",)),
    Column("revenue", "decimal", ("value", "revenue")),
    Column("total", "decimal", ("value", "total")),
    Column("currency", "text", ("value", "currency")),
    *(
        Column(name, "text", ("touchpoint", name))
        for name in ("kind", "channel", "source", "medium", "name", "term", "content")
    ),
    Column("touchpoint_event_id", "text", ("touchpoint", "eventId")),
    Column("touchpoint_at", "time", ("touchpoint", "at")),
    Column("touchpoints", "json", ("touchpoints",)),
    Column("credits", "json", ("credits",)),
    Column("attribution_id", "text", ("attributionId",)),
    Column("reason", "text", ("reason",)),
    Column("cause_event_id", "text", ("cause",)),
]

TABLES: Mapping[str, Sequence[Column]] = {
    "attributions": _OF_ATTRIBUTION, "identifies": _OF_IDENTIFY, "events": _OF_EVENT, "records": (),
}  # fmt: skip
"""The columns of each table besides those of the envelope and of the data of events, in the order of the commits.

Events come behind what is derived from them: up to a position that `events` has, the others are complete. `records` has
the records of all other types. Erasures are among them, and come last: who finds one finds all records before it.
"""
_TABLE_OF = {
    "event": "events", "identify": "identifies", "attribution": "attributions", "attribution_reversal": "attributions",
}  # fmt: skip


def table_of(type_: str) -> str:
    return _TABLE_OF.get(type_, "records")


def arrow_type(kind: Kind) -> pa.DataType:
    return _ARROW[kind]


def columns_of_events(
    schemas: Mapping[str, Mapping[str, Any]], present: Mapping[str, pa.DataType]
) -> dict[str, list[Column]]:
    """The columns of each event key besides those of all events, by the schemas of the data.

    A column keeps its type for ever. If a member has another kind, by another schema or a later one, it has a second
    column, which the kind names: `size`, `size_decimal`. `present` has the types of the columns that the table has.
    """
    taken = {"date", *ENVELOPE.names, *(each.name for each in _OF_EVENT)}  # rows have their day as `date`
    types = {**present}
    found: dict[str, list[Column]] = {}
    for key, schema in sorted(schemas.items()):
        used: set[str] = set()
        uri = schema.get("$id", "")
        for member in Schemas({**schema.get("$defs", {}), uri: schema}).members(uri):
            name = snake_case("/".join(member.path))
            name = f"data_{name}" if name in taken else name
            if name in used or types.setdefault(name, arrow_type(member.kind)) != arrow_type(member.kind):
                name = f"{name}_{member.kind}"
                if name in used or types.setdefault(name, arrow_type(member.kind)) != arrow_type(member.kind):
                    continue  # two members whose names differ in signs only; the record has both
            used.add(name)
            found.setdefault(key, []).append(Column(name, member.kind, ("data", *member.path)))
    return found


@lru_cache(1000)
def row_maker(columns: tuple[Column, ...]) -> RowMaker:
    """Each is made once: it takes a millisecond, and there is one for each event key."""
    return RowMaker(columns)


class RowMaker:
    """Makes the rows of records with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        if columns:
            places: dict[tuple[str, ...], str] = {}
            self._read = members_reader(_struct_of([(each.path, each.kind) for each in columns], places, (), ""))
            self._values = attrgetter(*(places[each.path] for each in columns))

    def table(self, rows: Sequence[Columns], records: Sequence[Record]) -> pa.Table:
        """The table of records with these columns. It has the column `date`, too."""
        table = make_table(rows, records)
        arrays = {field.name: table[field.name].cast(field.type) for field in ENVELOPE}
        arrays["timestamp"] = _known_times(arrays["timestamp"])
        fields = [*ENVELOPE]
        if self._columns:
            found = [self._values(self._read(record.body)) for record in records]
            for column, values in zip(self._columns, zip(*found, strict=True), strict=True):
                array = _array(values, column.kind)
                if array.null_count < len(array):
                    fields.append(pa.field(column.name, array.type))
                    arrays[column.name] = array
        arrays["date"] = table["date"].cast(pa.string())
        return pa.Table.from_arrays([*arrays.values()], schema=pa.schema([*fields, ("date", pa.string())]))


def _struct_of(
    paths: Sequence[tuple[tuple[str, ...], Kind]], places: dict[tuple[str, ...], str], before: tuple[str, ...], at: str
) -> type[msgspec.Struct]:
    """A struct with the members of these paths. `places` gets the dotted name of the attribute of each."""
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for index, name in enumerate(dict.fromkeys(path[0] for path, _ in paths)):
        attribute, whole = f"m{index}", (*before, name)
        names[attribute] = name
        inner = [(path[1:], kind) for path, kind in paths if path[0] == name and len(path) > 1]
        if inner:
            type_ = _struct_of(inner, places, whole, f"{at}{attribute}.")
            fields.append((attribute, type_, type_()))
        else:
            (kind,) = [kind for path, kind in paths if path == (name,)]
            fields.append((attribute, _READ[kind], NO_MEMBER if kind == "json" else None))
            places[whole] = f"{at}{attribute}"
    return msgspec.defstruct("Members", fields, rename=names, frozen=True, gc=False)


def _array(values: Sequence[Any], kind: Kind) -> pa.Array:
    if kind == "decimal":
        values = [None if value is None else _decimal(value) for value in values]
    elif kind == "json":
        values = [bytes(value).decode() if value and bytes(value) != b"null" else None for value in values]
    array = pa.array(values, arrow_type(kind))
    return _known_times(array) if kind == "time" else array


def _known_times(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Times whose year in UTC has four digits. Others are null: readers have no type for them."""
    is_known = pc.and_(pc.greater_equal(times, _FIRST), pc.less_equal(times, _LAST))
    return pc.if_else(is_known, times, pa.scalar(None, TIME))


@lru_cache(10_000)
def _decimal(value: float) -> Decimal | None:
    number = Decimal(repr(value))  # the digits that were sent
    return None if abs(number) >= _MOST else number.quantize(Decimal("1e-18"), context=Context(prec=38))
