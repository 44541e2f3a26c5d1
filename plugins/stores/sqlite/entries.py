"""Reads of whole entries for `SqliteContents`, on the connection's thread: many entries with a few statements.

Each statement returns all its rows as one, for the reason that `batch` tells.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ingestd.api.contents import Entry
from ingestd.api.store import Field

from .connection import snapshot
from .ttl_log import Renewal, TtlLog, read_log

__all__ = ["read_entries", "select_keys"]

_NAMED = "(SELECT value FROM json_each(?))"
_STATES = (
    "SELECT json_group_array(json_array(key, value, fields, expires)) FROM state"  # noqa: S608 - constant
    f" WHERE key IN {_NAMED}"
)
_FIELDS = f"SELECT json_group_array(json_array(key, name, at, value)) FROM field WHERE key IN {_NAMED}"  # noqa: S608 - constant
_MEMBERS = (
    "SELECT json_group_array(json_array(key, member, at, expires)) FROM"  # noqa: S608 - constant
    f" (SELECT * FROM member WHERE key IN {_NAMED} ORDER BY at, member)"
)
_ELSEWHERE = "{}"
"""The value of `state.fields` if the fields of the entry are in the table `field`."""

_decode_keys = msgspec.json.Decoder(list[str]).decode
_decode_states = msgspec.json.Decoder(list[tuple[str, str | None, str | None, int | None]]).decode
_decode_fields = msgspec.json.Decoder(list[tuple[str, str, int, str]]).decode
_decode_old_fields = msgspec.json.Decoder(dict[str, Field]).decode
_decode_members = msgspec.json.Decoder(list[tuple[str, str, int, int | None]]).decode


def select_keys(connection: sqlite3.Connection, table: str, after: str, limit: int) -> list[str]:
    """The next keys of a table, in order, each once."""
    query = f"SELECT DISTINCT key FROM {table} WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608 - two tables
    (text,) = connection.execute(f"SELECT json_group_array(key) FROM ({query})", (after, limit)).fetchone()  # noqa: S608 - constant
    return _decode_keys(text)


def read_entries(
    connection: sqlite3.Connection, keys: Sequence[str], renewals: Mapping[str, Renewal] | None
) -> list[Entry]:
    """The entries with some keys, the sets last. `renewals` are from the TTL log; None reads it from the file."""
    named = msgspec.json.encode(keys).decode()
    with snapshot(connection):
        if renewals is None:
            renewals = TtlLog(*read_log(connection)).of(keys)
        states, sets = [*_states(connection, named, renewals)], [*_sets(connection, named)]
    logged = [Entry(key, value, expires=expires) for key, (value, expires) in renewals.items()]
    return [*states, *logged, *sets]


def _states(connection: sqlite3.Connection, named: str, renewals: Mapping[str, Renewal]) -> Iterator[Entry]:
    """The entries with a value or fields, without those that have a renewal."""
    elsewhere: dict[str, int | None] = {}
    for key, value, fields, expires in _decode_states(_one(connection, _STATES, named)):
        if key in renewals:
            continue
        if value is not None:
            yield Entry(key, value, expires=expires)
        elif fields == _ELSEWHERE:
            elsewhere[key] = expires
        elif fields:
            yield Entry(key, fields=_decode_old_fields(fields))
    if elsewhere:
        by_key: dict[str, dict[str, Field]] = defaultdict(dict)
        named = msgspec.json.encode([*elsewhere]).decode()
        for key, name, at, text in _decode_fields(_one(connection, _FIELDS, named)):
            by_key[key][name] = Field(at, text)
        for key, found in by_key.items():
            yield Entry(key, fields=found, expires=elsewhere[key])


def _sets(connection: sqlite3.Connection, named: str) -> Iterator[Entry]:
    by_key: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, int | None] = {}
    for key, member, at, expires in _decode_members(_one(connection, _MEMBERS, named)):
        by_key[key][member] = at
        # A set lives as long as its last member.
        end = ends.setdefault(key, expires)
        ends[key] = None if end is None or expires is None else max(end, expires)
    for key, members in by_key.items():
        yield Entry(key, members=members, expires=ends[key])


def _one(connection: sqlite3.Connection, query: str, named: str) -> str:
    text: str = connection.execute(query, (named,)).fetchone()[0]
    return text
