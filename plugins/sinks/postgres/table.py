"""The table: its columns, creating and checking it, and what it has of a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.sink import Digest

__all__ = ["COLUMNS", "Table"]

_TIME = "timestamp with time zone"
COLUMNS = {
    "id": "text",
    "type": "text",
    "tenant": "text",
    "key": "text",
    "received_at": _TIME,
    "timestamp": _TIME,
    "anonymous_id": "text",
    "user_id": "text",
    "session_id": "text",
    "position": "bigint",
    "record": "jsonb",
}
_FURTHER = {  # C compares ids by their bytes, which is quicker; no other collation makes sense for ids
    "id": 'COLLATE "C" PRIMARY KEY',
    "type": "NOT NULL",
    "received_at": "NOT NULL",
    "position": "NOT NULL",
    "record": "NOT NULL",
}

_ORDER = "coalesce(record->>'orderId', record->'data'->>'order_id')"
_INDEXES = {
    "position": "(position)",
    "received_at": "USING brin (received_at)",
    "type": "(type, key, received_at)",
    # Hashes, because a value may be longer than another index takes, and queries ask for one value.
    "anonymous_id": "USING hash (anonymous_id)",
    "user_id": "USING hash (user_id) WHERE user_id IS NOT NULL",
    "order_id": f"USING hash (({_ORDER})) WHERE {_ORDER} IS NOT NULL",
}
"""The indexes of the documented queries, by a word of the first column or expression."""

_SELECT_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
"""
# An index on (id, received_at) is as good as one on (id), because a record that comes again has the same time.
# Partitioned tables need such an index.
_SELECT_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_index
    WHERE indrelid = $1 AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND (
        SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY((indkey::int2[])[0 : indnkeyatts - 1])
    ) IN ('{id}', '{id,received_at}')
)
"""
_SELECT_INDEXED = "SELECT pg_get_indexdef(indexrelid, 1, true) FROM pg_index WHERE indrelid = $1 AND indisvalid"
_SELECT_LACKING = "SELECT name FROM unnest($2::text[]) AS name WHERE NOT has_column_privilege($1::oid, name, $3)"

_NAME = re.compile(r"[^\W\d]\w*")


class Table:
    """The table. Raises `ConfigError` for an invalid name, and `SinkRetry` for a table that cannot take records."""

    def __init__(self, text: str, option: str, asyncpg: Any) -> None:
        parts = text.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) and len(part.encode()) <= 63 for part in parts):
            raise ConfigError(
                f'{option}: expected "table" or "schema.table" of letters, digits and _, each up to 63 bytes,'
                f" got {text!r}"
            )
        self.name = parts[-1]
        self.schema = parts[0] if len(parts) == 2 else None
        self.quoted = ".".join(f'"{part}"' for part in parts)
        self._given = text
        self._asyncpg = asyncpg

    async def ensure(self, connection: Any) -> None:
        """Create the table if missing, check that it can take records, and make commits durable."""
        await connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        table = await self._find(connection)
        if table is None:
            columns = ", ".join(f'"{name}" {type_} {_FURTHER.get(name, "")}' for name, type_ in COLUMNS.items())
            statements = [f"CREATE TABLE {self.quoted} ({columns})", *map(self._index, _INDEXES)]
            # Another client may create the table first.
            with suppress(self._asyncpg.DuplicateTableError, self._asyncpg.UniqueViolationError):
                await connection.execute("; ".join(statements))  # in one transaction
            table = await self._find(connection)
        await self._inspect(connection, table)

    def _index(self, name: str, how: str = "") -> str:
        return f"CREATE INDEX {how}ON {self.quoted} {_INDEXES[name]}"

    async def check(self, connection: Any) -> list[str]:
        """Check whether records can be written, and change nothing.

        Returns a statement for each index that the documented queries use and the table lacks.
        """
        if await connection.fetchval("SELECT current_setting('transaction_read_only')") == "on":
            raise SinkRetry("the database is read-only")
        table = await self._find(connection)
        if table is None:
            schema = self.schema or await connection.fetchval("SELECT current_schema()")
            if schema is None:
                raise SinkRetry("the user's search_path has no schema that exists")
            if not await connection.fetchval("SELECT has_schema_privilege($1, 'CREATE')", schema):
                raise SinkRetry(f"there is no table {self._given}, and no right to CREATE it in schema {schema}")
            return []
        kind = await self._inspect(connection, table)
        for right, columns in (("INSERT", [*COLUMNS]), ("SELECT", ["id"])):
            lacking = await connection.fetch(_SELECT_LACKING, table, columns, right)
            if lacking:
                names = ", ".join(name for (name,) in lacking)
                raise SinkRetry(f"no right to {right} {names} of the table {self._given}")
        firsts = [first.strip('"') for (first,) in await connection.fetch(_SELECT_INDEXED, table)]
        how = "" if kind == "p" else "CONCURRENTLY "  # PostgreSQL has no such index of a partitioned table
        return [
            self._index(name, how)
            for name in _INDEXES
            if not any(first == name or (name not in COLUMNS and name in first) for first in firsts)
        ]

    async def digests(self, connection: Any, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        query = f"""
        SELECT floor(extract(epoch FROM received_at) * 1000 / $3)::bigint, count(*),
            sum(('x' || left(md5(id), 15))::bit(60)::bigint) % 18446744073709551616
        FROM {self.quoted} WHERE received_at >= $1 AND received_at < $2 GROUP BY 1
        """  # noqa: S608 - the name is checked and quoted
        rows = await connection.fetch(query, _time(begin), _time(end), step)
        return {part: Digest(count, int(total)) for part, count, total in rows}

    async def ids(self, connection: Any, begin: int, end: int) -> Sequence[str]:
        query = f"SELECT id FROM {self.quoted} WHERE received_at >= $1 AND received_at < $2"  # noqa: S608 - as above
        return [found for (found,) in await connection.fetch(query, _time(begin), _time(end))]

    async def _find(self, connection: Any) -> int | None:
        table: int | None = await connection.fetchval("SELECT to_regclass($1)::oid", self.quoted)
        return table

    async def _inspect(self, connection: Any, table: int | None) -> str:
        """The kind of the table. Raises `SinkRetry` with all faults of a table that cannot take records."""
        kind, persistence = await connection.fetchrow(
            "SELECT relkind::text, relpersistence::text FROM pg_class WHERE oid = $1", table
        )
        faults = []
        if kind not in {"r", "p"}:
            faults.append("is not a table")
        if persistence == "u":
            faults.append("is unlogged: a crash of the server would empty it")
        found = {name: (type_, needed) for name, type_, needed in await connection.fetch(_SELECT_COLUMNS, table)}
        for name, wanted in COLUMNS.items():
            type_, _ = found.get(name, (None, False))
            if type_ is None:
                faults.append(f"has no column {name} ({wanted})")
            elif type_ != wanted:
                faults.append(f"has a column {name} of type {type_}, not {wanted}")
        faults += [
            f"has a column {name} that must be given: it needs a default"
            for name, (_, needed) in found.items()
            if needed and name not in COLUMNS
        ]
        if not await connection.fetchval(_SELECT_UNIQUE, table):
            faults.append("has no unique index on (id), or on (id, received_at)")
        if faults:
            raise SinkRetry(f"the table {self._given} " + "; it ".join(faults))
        return str(kind)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds // 1000, UTC)
