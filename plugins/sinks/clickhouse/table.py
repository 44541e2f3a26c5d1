"""The table: its columns by the version of the server, creating and checking it, and what it has of a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.sink import Digest

from .client import Server

__all__ = ["COLUMNS", "Layout", "Table"]

_TEXT, _TIME, _JSON, _NUMBER = {"String"}, {"DateTime", "DateTime64"}, {"String", "JSON", "Object"}, {"Int64", "UInt64"}
COLUMNS = {
    "id": _TEXT,
    "type": _TEXT,
    "tenant": _TEXT,
    "key": _TEXT,
    "received_at": _TIME,
    "timestamp": _TIME,
    "anonymous_id": _TEXT,
    "user_id": _TEXT,
    "session_id": _TEXT,
    "position": _NUMBER,
    "data": _JSON,
    "context": _JSON,
    "record": _TEXT,
}
"""The columns that the sink writes, and the types that each may have, apart from Nullable and LowCardinality."""

# Paths of `data` that have the same type in all schemas and in attributions. A server that cannot leave out a value of
# another type would refuse its record, so it gets no typed paths.
_NUMBERS = ("price", "quantity", "total", "revenue", "shipping", "tax", "discount", "value.revenue", "value.total")
_TEXTS = (
    "order_id", "product_id", "category", "coupon", "currency", "orderId", "model", "reason", "value.currency",
    "touchpoint.source", "touchpoint.medium", "touchpoint.name", "touchpoint.channel",
)  # fmt: skip
_TYPED = ", ".join([f"{path} Nullable(Float64)" for path in _NUMBERS] + [f"{path} Nullable(String)" for path in _TEXTS])
_LENIENT = "type_json_skip_invalid_typed_paths"

# The first versions in which these types can be used without further settings.
_WITH_TYPES = (20, 8)  # DateTime64, LowCardinality and compression of single columns
_WITH_JSON = (25, 3)

_ENGINES_WITHOUT_STORAGE = {"Buffer", "Memory", "Set", "View"}
_SETTINGS = {
    # Unknown ones are left out. An operator's profile may have other values of these.
    "async_insert": "0",  # the server would forget the token of a batch
    "date_time_input_format": "best_effort",
    "input_format_allow_errors_num": "0",
    "input_format_allow_errors_ratio": "0",
    "input_format_skip_unknown_fields": "0",
    "insert_deduplicate": "1",
    "max_partitions_per_insert_block": "0",
    "type_json_skip_duplicated_paths": "1",
    _LENIENT: "1",
}
_PAGE = 10_000
"""Ids of one answer: the client takes a megabyte."""
_BY_SINK = ("insert_deduplication_token",)
# A new table remembers the tokens of so many inserts. Rows are on the disk when an insert returns.
_TABLE_SETTINGS = {"fsync_after_insert": 1, "fsync_part_directory": 1, "non_replicated_deduplication_window": 1000}

# Names are put into statements as they are: see S608 below.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BASE = re.compile(r"(?:(?:LowCardinality|Nullable)\()*(\w+)")


class Layout(NamedTuple):
    """What rows and inserts depend on."""

    version: str
    objects: frozenset[str]
    """The columns that take a JSON object as it is. The others take its text."""
    years: range
    """The years that the column `timestamp` can hold."""
    settings: tuple[tuple[str, str], ...]
    """The settings of each insert."""
    known: frozenset[str]
    """Which of the settings that the sink chooses the server knows."""


class Table:
    """Raises `ConfigError` for an invalid name, and `SinkRetry` for a table that cannot take records."""

    def __init__(self, database: str, table: str, path: str) -> None:
        for option, name in (("database", database), ("table", table)):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{path}.{option}: expected ASCII letters, digits and _, got {name!r}")
        self._database = database
        self._named = f"database = '{database}' AND {{}} = '{table}'"
        self.quoted = f"`{database}`.`{table}`"
        self._given = f"{database}.{table}"
        self.insert = f"INSERT INTO {self.quoted} ({', '.join(COLUMNS)}) FORMAT JSONEachRow"

    async def ensure(self, server: Server) -> Layout:
        """Create the table if missing, and check that it can take records."""
        version = await _version(server)
        types = await self._find(server)
        known = await _known(server, "settings", [*_SETTINGS, *_BY_SINK])
        if types is None:
            of_tables = await _known(server, "merge_tree_settings", _TABLE_SETTINGS)
            await server.execute(self._definition(version, of_tables, typed=_LENIENT in known))
            types = await self._find(server)
            if types is None:
                raise SinkRetry(f"the table {self._given} was created, but cannot be seen")
        bases = await self._inspect(server, types)
        return Layout(
            version,
            frozenset(name for name in ("data", "context") if bases[name] != "String"),
            range(1971, 2105) if bases["timestamp"] == "DateTime" else range(1926, 2282),
            tuple((name, value) for name, value in _SETTINGS.items() if name in known),
            known & {*_BY_SINK},
        )

    async def check(self, server: Server) -> None:
        """Check whether records can be written, and change nothing."""
        await _version(server)
        readonly = await server.rows("SELECT value FROM system.settings WHERE name = 'readonly'")
        if readonly and readonly[0]["value"] == "1":
            raise SinkRetry("the user may only read")
        types = await self._find(server)
        if types is not None:
            await self._inspect(server, types)
        elif not await server.rows(f"SELECT name FROM system.databases WHERE name = '{self._database}'"):  # noqa: S608
            raise SinkRetry(f"there is no database {self._database}")

    async def digests(self, server: Server, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        """Digests of ids by parts of a time. Copies that a merge has not removed yet count once."""
        # By seconds, because a table of an old server has no milliseconds.
        rows = await server.rows(
            "SELECT toString(part) AS part, toString(count()) AS count, toString(sumWithOverflow(number)) AS sum"  # noqa: S608
            f" FROM (SELECT DISTINCT id, intDiv(toUnixTimestamp(received_at), {step // 1000}) AS part,"
            " bitShiftRight(reinterpretAsUInt64(reverse(substring(MD5(id), 1, 8))), 4) AS number"
            f" FROM {self.quoted} WHERE {_within(begin, end)}) GROUP BY part"
        )
        return {int(row["part"]): Digest(int(row["count"]), int(row["sum"])) for row in rows}

    async def ids(self, server: Server, begin: int, end: int) -> Sequence[str]:
        found: list[str] = []
        while len(found) % _PAGE == 0:
            rows = await server.rows(
                f"SELECT DISTINCT id FROM {self.quoted} WHERE {_within(begin, end)}"  # noqa: S608 - the names are checked
                f" AND id > unhex('{(found[-1] if found else '').encode().hex()}') ORDER BY id LIMIT {_PAGE}"
            )
            found += [row["id"] for row in rows]
            if not rows:
                break
        return found

    async def _find(self, server: Server) -> dict[str, str] | None:
        """The types of the columns, or None if there is no table."""
        rows = await server.rows(f"SELECT name, type FROM system.columns WHERE {self._named.format('table')}")  # noqa: S608
        return {row["name"]: row["type"] for row in rows} or None

    async def _inspect(self, server: Server, types: dict[str, str]) -> dict[str, str]:
        """The types without Nullable and such. Raises `SinkRetry` with all faults."""
        rows = await server.rows(f"SELECT engine FROM system.tables WHERE {self._named.format('name')}")  # noqa: S608
        faults = [
            f"has the engine {row['engine']}, which stores nothing durably"
            for row in rows
            if row["engine"] in _ENGINES_WITHOUT_STORAGE
        ]
        bases = {}
        for name, wanted in COLUMNS.items():
            if name not in types:
                faults.append(f"has no column {name}")
                continue
            match = _BASE.match(types[name])
            bases[name] = match[1] if match else ""
            if bases[name] not in wanted:
                faults.append(f"has a column {name} of type {types[name]}, not {' or '.join(sorted(wanted))}")
        if faults:
            raise SinkRetry(f"the table {self._given} " + "; it ".join(faults))
        return bases

    def _definition(self, version: str, settings: frozenset[str], *, typed: bool) -> str:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        modern = numbers >= _WITH_TYPES
        name = "LowCardinality(String)" if modern else "String"
        time = "DateTime64(3, 'UTC')" if modern else "DateTime('UTC')"
        json = "JSON" if numbers >= _WITH_JSON else "String"
        types = {
            "id": "String", "type": name, "tenant": name, "key": name, "received_at": time,
            "timestamp": f"Nullable({time})", "anonymous_id": "Nullable(String)", "user_id": "Nullable(String)",
            "session_id": "Nullable(String)", "position": "Int64",
            "data": f"JSON({_TYPED})" if typed else json, "context": json,
            "record": "String CODEC(ZSTD(1))" if modern else "String",
        }  # fmt: skip
        columns = ", ".join(f"{column} {type_}" for column, type_ in types.items())
        # Queries ask for a key of a tenant and a time. A record that comes again has the same values of them, so both
        # rows have the same sort key in the same partition.
        definition = (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} ({columns}) ENGINE = ReplacingMergeTree"
            " PARTITION BY toYYYYMM(received_at) ORDER BY (tenant, type, key, received_at, id)"
        )
        chosen = ", ".join(f"{name} = {value}" for name, value in _TABLE_SETTINGS.items() if name in settings)
        return f"{definition} SETTINGS {chosen}" if chosen else definition


async def _version(server: Server) -> str:
    rows = await server.rows("SELECT version() AS version")
    try:
        return str(rows[0]["version"])
    except (IndexError, KeyError, TypeError):
        raise SinkRetry(f"{server.host} is not the HTTP interface of ClickHouse") from None


async def _known(server: Server, table: str, names: Iterable[str]) -> frozenset[str]:
    """Which of these settings the server knows."""
    listed = ", ".join(f"'{name}'" for name in names)
    rows = await server.rows(f"SELECT name FROM system.{table} WHERE name IN ({listed})")  # noqa: S608
    return frozenset(row["name"] for row in rows)


def _within(begin: int, end: int) -> str:
    return f"received_at >= toDateTime({begin // 1000}, 'UTC') AND received_at < toDateTime({end // 1000}, 'UTC')"
