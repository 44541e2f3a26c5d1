"""The SQL of PostgreSQL, ClickHouse and DuckDB, as far as it differs: records, values in JSON, types.

Values in JSON come from callers and from schemas of another time. A value that is not of the kind of its column is
null: no record makes a query fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ingestd.support.schema_members import Kind

__all__ = ["DIALECTS", "ClickHouse", "Dialect", "DuckDB", "Postgres", "text_literal"]

_LEAP = "((19|2[0-2])(0[48]|[2468][048]|[13579][26])|2000)-02-29"
_DATE = (
    "((19|2[0-2])[0-9][0-9]-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    f"|{_LEAP})"
)
_TIME = "[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,30})?([Zz]|[+-](0[0-9]|1[0-4]):[0-5][0-9])"
"""Days that exist, in years that all engines know. A text of another form is no time, and would stop a query.
So does one of 130 characters in PostgreSQL."""


_ROUNDED_SHARE = "round(round({amount}, 9) * round({weight}, 16), 9)"


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Dialect:
    """Pieces of SQL. `value` is an expression with JSON, `source` the name of a view or a query in parentheses."""

    name: ClassVar[str]
    quote: ClassVar[str] = '"'
    types: ClassVar[Mapping[Kind, str]]
    pieces: ClassVar[Mapping[str, str]]
    """What the engine has for the method of this name, with the names of its arguments in braces."""
    schema_word: ClassVar[str] = "SCHEMA"
    begin: ClassVar[Sequence[str]] = ("BEGIN",)
    end: ClassVar[Sequence[str]] = ("COMMIT",)
    nullable: ClassVar[str] = "{}"

    def __init__(self, records: str, schema: str = "ingestd") -> None:
        """`records` is what the sink has written, as it stands in SQL, or the folder of its files."""
        self.table = records
        self.schema = schema

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def schema_statement(self) -> str:
        return f"CREATE {self.schema_word} IF NOT EXISTS {self.quoted(self.schema)}"

    def view(self, name: str) -> str:
        return f"{self.quoted(self.schema)}.{self.quoted(name)}"

    def records(self, *types: str, key: str | None = None) -> str:
        """The records of these types, each once, in parentheses."""
        listed = ", ".join(map(text_literal, types))
        where = f"type IN ({listed})" + ("" if key is None else f" AND {self.quoted('key')} = {self.literal(key)}")
        columns = (
            f"id, type, tenant, {self.quoted('key')}, received_at,"
            f" coalesce({self.quoted('timestamp')}, received_at) AS event_at, anonymous_id, user_id, session_id,"
            f" position, {self._record} AS record"
        )
        return f"(SELECT {columns} FROM {self._from} WHERE {where}{self._once})"

    _record: ClassVar[str] = "record"
    _once: ClassVar[str] = ""

    @property
    def _from(self) -> str:
        return self.table

    def literal(self, text: str) -> str:
        return text_literal(text)

    def cast(self, expression: str, kind: Kind) -> str:
        return f"CAST({expression} AS {self.nullable.format(self.types[kind])})"

    def read(self, value: str, kind: Kind) -> str:
        """The column of a value in JSON."""
        found = {
            "text": self.text, "decimal": self.decimal, "boolean": self.boolean, "time": self.time, "date": self.date,
        }  # fmt: skip
        return found[kind](value) if kind in found else value

    def path(self, value: str, *names: str) -> str:
        for name in names:
            value = self.member(value, name)
        return value

    def member(self, value: str, name: str) -> str:
        raise NotImplementedError

    def element(self, array: str, index: str) -> str:
        """The element of an array by its index from 0."""
        return self._piece("element", array=array, index=index)

    def text(self, value: str, *names: str) -> str:
        """The text, or that of the member to which the names lead."""
        return self._piece("text", value=self.path(value, *names))

    def decimal(self, value: str) -> str:
        return self._piece("decimal", value=value)

    def boolean(self, value: str) -> str:
        return self._piece("boolean", value=value)

    def time(self, value: str) -> str:
        text = self.text(value)
        parsed = self._piece("parsed_time", text=f"upper({text})")
        return f"CASE WHEN {self.matches(text, _DATE + _TIME)} THEN {parsed} END"

    def date(self, value: str) -> str:
        text = self.text(value)
        return (
            f"CASE WHEN {self.matches(text, _DATE)} THEN CAST({text} AS {self.nullable.format(self.types['date'])}) END"
        )

    def matches(self, text: str, pattern: str) -> str:
        return self._piece("matches", text=text, pattern=pattern)

    def day(self, time: str) -> str:
        """The date in UTC."""
        return self._piece("day", time=time)

    def seconds(self, since: str, until: str) -> str:
        return self._piece("seconds", since=since, until=until)

    def rows(self, source: str, array: str) -> str:
        """The columns of the source, with `item` and `number` (from 1) for each element of an array."""
        return self._piece("rows", source=source, array=array)

    def entries(self, source: str, value: str) -> str:
        """The columns of the source, with `name` and `item` for each member of an object."""
        return self._piece("entries", source=source, value=value)

    def object_of(self, name: str, value: str) -> str:
        """The aggregate that makes an object."""
        return self._piece("object_of", name=name, value=value)

    def array(self, text: str) -> str:
        """A constant in JSON."""
        return self._piece("array", text=text_literal(text))

    def is_empty(self, array: str) -> str:
        return self._piece("is_empty", array=array)

    def length(self, array: str) -> str:
        return self._piece("length", array=array)

    def share(self, amount: str, weight: str) -> str:
        """The product to nine decimals. All engines have room for 10^12 with them."""
        return self._piece("share", amount=amount, weight=weight)

    def worth(self, price: str, quantity: str) -> str:
        """The product to six decimals of the quantity, if it is 10^12 at most."""
        return self._piece("worth", price=price, quantity=quantity)

    def _piece(self, method: str, /, **arguments: str) -> str:
        return self.pieces[method].format(**arguments)


class Postgres(Dialect):
    name = "postgres"
    types: ClassVar[Mapping[Kind, str]] = {
        "text": "text", "decimal": "numeric", "integer": "bigint", "boolean": "boolean",
        "time": "timestamp with time zone", "date": "date", "day": "date", "json": "jsonb",
    }  # fmt: skip
    pieces: ClassVar[Mapping[str, str]] = {
        "element": "({array} -> CAST({index} AS integer))",
        "text": "(CASE jsonb_typeof({value}) WHEN 'string' THEN {value} #>> '{{}}' END)",
        "decimal": "(CASE jsonb_typeof({value}) WHEN 'number' THEN CAST({value} AS numeric) END)",
        "boolean": "(CASE jsonb_typeof({value}) WHEN 'boolean' THEN CAST({value} AS boolean) END)",
        "matches": "{text} ~ '^{pattern}$'",
        "parsed_time": "CAST({text} AS timestamp with time zone)",
        "day": "CAST({time} AT TIME ZONE 'UTC' AS date)",
        "seconds": "CAST(floor(extract(epoch FROM {until} - {since})) AS bigint)",
        "rows": (
            "(SELECT s.*, e.item, e.number FROM {source} AS s CROSS JOIN LATERAL jsonb_array_elements("
            "CASE jsonb_typeof({array}) WHEN 'array' THEN {array} ELSE '[]'::jsonb END"
            ") WITH ORDINALITY AS e(item, number))"
        ),
        "entries": (
            "(SELECT s.*, e.name, e.item FROM {source} AS s CROSS JOIN LATERAL jsonb_each("
            "CASE jsonb_typeof({value}) WHEN 'object' THEN {value} ELSE '{{}}'::jsonb END) AS e(name, item))"
        ),
        "object_of": "jsonb_object_agg({name}, {value})",
        "array": "{text}::jsonb",
        "is_empty": "{array} = '[]'::jsonb",
        "length": "CASE jsonb_typeof({array}) WHEN 'array' THEN jsonb_array_length({array}) ELSE 0 END",
        "share": _ROUNDED_SHARE,
        # A numeric such as 1e400 is no double, and the product of the largest ones no numeric.
        "worth": (
            "CASE WHEN CASE WHEN greatest(abs({price}), abs({quantity})) <= 1e30 THEN abs({price} * {quantity}) END"
            " <= 1000000000000 THEN {price} * round({quantity}, 6) END"
        ),
    }

    def member(self, value: str, name: str) -> str:
        name = name.replace("\0", "\ufffd")  # as the sink writes it
        return f"({value} -> {text_literal(name)})"


class DuckDB(Dialect):
    name = "duckdb"
    types: ClassVar[Mapping[Kind, str]] = {
        "text": "VARCHAR", "decimal": "DECIMAL(38,18)", "integer": "BIGINT", "boolean": "BOOLEAN",
        "time": "TIMESTAMP WITH TIME ZONE", "date": "DATE", "day": "DATE", "json": "JSON",
    }  # fmt: skip
    pieces: ClassVar[Mapping[str, str]] = {
        "element": "json_extract({array}, '/' || CAST(CAST({index} AS BIGINT) AS VARCHAR))",
        "text": "(CASE json_type({value}) WHEN 'VARCHAR' THEN json_extract_string({value}, '$') END)",
        "decimal": (
            "(CASE WHEN json_type({value}) IN ('DOUBLE', 'BIGINT', 'UBIGINT')"
            " THEN TRY_CAST(json_extract_string({value}, '$') AS DECIMAL(38,18)) END)"
        ),
        "boolean": "(CASE json_type({value}) WHEN 'BOOLEAN' THEN CAST({value} AS BOOLEAN) END)",
        "matches": "regexp_full_match({text}, '{pattern}')",
        "parsed_time": "CAST({text} AS TIMESTAMP WITH TIME ZONE)",
        "day": "CAST({time} AT TIME ZONE 'UTC' AS DATE)",
        "seconds": "date_sub('second', {since}, {until})",
        "rows": (
            "(SELECT * EXCLUDE (elements), unnest(elements) AS item, generate_subscripts(elements, 1) AS number"
            " FROM (SELECT *, TRY_CAST({array} AS JSON[]) AS elements FROM {source}))"
        ),
        "entries": (
            "(SELECT *, json_extract({value}, '/' || replace(replace(name, '~', '~0'), '/', '~1')) AS item"
            " FROM (SELECT *, unnest(json_keys({value})) AS name FROM {source}))"
        ),
        "object_of": "json_group_object({name}, {value})",
        "array": "CAST({text} AS JSON)",
        "is_empty": "CAST({array} AS VARCHAR) = '[]'",
        "length": "coalesce(json_array_length({array}), 0)",
        "share": "CAST(CAST({amount} AS DECIMAL(38,9)) * CAST({weight} AS DECIMAL(38,16)) AS DECIMAL(38,9))",
        "worth": (
            "CASE WHEN abs(CAST({price} AS DOUBLE PRECISION) * CAST({quantity} AS DOUBLE PRECISION)) <= 1000000000000"
            " THEN CAST({price} * CAST({quantity} AS DECIMAL(38,6)) AS DECIMAL(38,18)) END"
        ),
    }
    _record = "CAST(record AS JSON)"
    # The date of a record is that of its receipt, so a filter of dates reads only their files.
    _once = " QUALIFY row_number() OVER (PARTITION BY date, id ORDER BY position DESC) = 1"

    @property
    def _from(self) -> str:
        if self.table.startswith("("):  # the tables of an iceberg sink
            return self.table
        folder = re.sub(r"[\[*?]", r"[\g<0>]", self.table)  # else a pattern
        files = text_literal(f"{folder}/**/*.parquet")
        return f"read_parquet({files}, hive_partitioning = true, union_by_name = true)"

    def member(self, value: str, name: str) -> str:
        pointer = "/" + name.replace("~", "~0").replace("/", "~1")
        return f"json_extract({value}, {text_literal(pointer)})"


class ClickHouse(Dialect):
    name = "clickhouse"
    quote = "`"
    # 76 digits: of two decimals with 38 digits ClickHouse computes neither product nor quotient. Of two Date32 it
    # computes no difference, so days of receipt are Date.
    types: ClassVar[Mapping[Kind, str]] = {
        "text": "String", "decimal": "Decimal(76, 18)", "integer": "Int64", "boolean": "Bool",
        "time": "DateTime64(3, 'UTC')", "date": "Date32", "day": "Date", "json": "String",
    }  # fmt: skip
    pieces: ClassVar[Mapping[str, str]] = {
        "element": "JSONExtractRaw({array}, toInt32({index}) + 1)",
        "text": "if(JSONType({value}) = 'String', JSONExtractString({value}), NULL)",
        "decimal": "if(JSONType({value}) IN ('Int64', 'UInt64', 'Double'), toDecimal256OrNull({value}, 18), NULL)",
        "boolean": "if(JSONType({value}) = 'Bool', CAST({value} = 'true' AS Bool), NULL)",
        "matches": "match({text}, '^{pattern}$')",
        "parsed_time": "parseDateTime64BestEffortOrNull({text}, 3, 'UTC')",
        "day": "toDate({time}, 'UTC')",
        "seconds": "dateDiff('second', {since}, {until})",
        "rows": (  # of what is no array there are no elements
            "(SELECT *, item, toInt64(number) AS number FROM {source}"
            " ARRAY JOIN JSONExtractArrayRaw(ifNull({array}, '')) AS item,"
            " arrayEnumerate(JSONExtractArrayRaw(ifNull({array}, ''))) AS number)"
        ),
        "entries": (
            "(SELECT *, entry.1 AS name, entry.2 AS item FROM {source}"
            " ARRAY JOIN JSONExtractKeysAndValuesRaw(ifNull({value}, '')) AS entry)"
        ),
        "object_of": (
            "concat('{{', arrayStringConcat(groupArray(concat(toJSONString({name}), ':', {value})), ','), '}}')"
        ),
        "array": "{text}",
        "is_empty": "{array} = '[]'",
        "length": "JSONLength(ifNull({array}, ''))",
        "share": _ROUNDED_SHARE,
        "worth": (
            "if(abs(toFloat64({price}) * toFloat64({quantity})) <= 1000000000000,"
            " CAST({price} * round({quantity}, 6) AS Nullable(Decimal(76, 18))), NULL)"
        ),
    }
    schema_word = "DATABASE"
    begin: ClassVar[Sequence[str]] = ()
    end: ClassVar[Sequence[str]] = ()
    nullable = "Nullable({})"

    @property
    def _from(self) -> str:
        return f"{self.table} FINAL"

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def member(self, value: str, name: str) -> str:
        return f"JSONExtractRaw({value}, {self.literal(name)})"


DIALECTS = {each.name: each for each in (Postgres, ClickHouse, DuckDB)}
