"""Databases as after years of use: copies of the state of one visitor, or of a few records.

The daemon writes the originals. So the copies have the form that its plugins use.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from ingestd.api.store import key_digest

from .servers import BASE_PATH, CONFIG, Server, create_key, ingestd
from .shop import usual

__all__ = ["TENANT", "fill_journal", "fill_state", "visitor_name"]

TENANT = "bench"  # the tenant of `create_key`
_CACHE_KIB = 2 << 20
_MODELS = 1000  # records
_SHARE = 10
"""One visitor in so many came from a campaign, and another one has identified."""


def visitor_name(number: int) -> str:
    """A name of fixed length, because post.lua replaces one name by another."""
    return f"visitor-{number:08d}"


def _user_name(number: int) -> str:
    return f"user-{number:08d}"


def fill_state(folder: Path, visitors: int, config: str = CONFIG, *, present: bool = False) -> str:
    """Make a daemon's database with so many known visitors in a folder. Returns a key for callers.

    `present`: the visitors have just been active. Otherwise their sessions expired over a day ago and were removed.
    """
    with _began(folder, config) as (server, key):
        for number, kind in enumerate(("plain", "campaign", "user")):
            _visit(server, key, number, kind)
        server.settle()
    with _bulk(folder) as database:
        models = [_Model(database, number, present=present) for number in range(3)]
        others = [(number, models[_kind(number)]) for number in range(3, visitors)]
        database.executemany(
            "INSERT INTO state (key, value, fields, expires) VALUES (?, ?, ?, ?)",
            (row for number, model in others for row in model.states(number)),
        )
        database.executemany(
            "INSERT INTO member (key, member, at, expires) VALUES (?, ?, ?, ?)",
            (row for number, model in others for row in model.members(number)),
        )
    return key


def fill_journal(folder: Path, records: int, config: str = CONFIG) -> None:
    """Make a daemon's database with about so many records, all of them processed by the consumers."""
    with _began(folder, config) as (server, key):
        for body in islice(usual(), min(records, _MODELS)):
            _post(server, key, "track", body)
        server.settle()
    with _bulk(folder) as database:
        first, last = database.execute("SELECT min(position), max(position) FROM journal").fetchone()
        count = last - first + 1
        for turn in range(1, records // count):  # whole copies
            database.execute(
                "INSERT INTO journal (position, at, type, body) SELECT position + ?, at, type, body FROM journal"
                " WHERE position BETWEEN ? AND ?",
                (turn * count, first, last),
            )
        database.execute("UPDATE cursors SET position = (SELECT max(position) FROM journal)")


@contextlib.contextmanager
def _began(folder: Path, config: str) -> Iterator[tuple[Server, str]]:
    """A daemon that knows a key from its start."""
    (folder / "ingestd.toml").write_text(config)
    key = create_key(folder)
    with ingestd(folder, config) as server:
        yield server, key


def _visit(server: Server, key: str, number: int, kind: str) -> None:
    # A session with a given id gets a row at once.
    visitor = {"anonymousId": visitor_name(number), "sessionId": str(UUID(int=number))}
    context = {"campaign": {"source": "newsletter", "medium": "email", "name": "autumn-sale"}}
    event: dict[str, Any] = {"key": "Page View", "data": {}, **visitor}
    _post(server, key, "track", event if kind == "plain" else {**event, "context": context})
    if kind == "user":
        traits = {"email": "someone@shop.example", "firstName": "Some", "plan": "gold"}
        _post(server, key, "identify/public", {"userId": _user_name(number), "traits": traits, **visitor})


def _post(server: Server, key: str, path: str, body: dict[str, Any]) -> None:
    server.post(f"{BASE_PATH}/{path}", json.dumps(body).encode(), key)


@contextlib.contextmanager
def _bulk(folder: Path) -> Iterator[sqlite3.Connection]:
    """The unshared database, in one transaction that is not safe against power failures."""
    with contextlib.closing(sqlite3.connect(folder / "ingestd.db", isolation_level=None)) as database:
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")
        yield database
        database.execute("COMMIT")


def _kind(number: int) -> int:
    return {1: 1, 2: 2}.get(number % _SHARE, 0)


class _Model:
    """The rows of one visitor, from which the rows of other visitors are made."""

    def __init__(self, database: sqlite3.Connection, number: int, *, present: bool) -> None:
        self._names = (visitor_name(number), _user_name(number))
        self._digests = [key_digest(TENANT, name) for name in self._names]
        states = self._rows(database, "SELECT key, value, fields, expires FROM state")
        self._states = [row for row in states if present or row[0] != "session"]
        self._members = self._rows(database, "SELECT key, member, at, expires FROM member ORDER BY number")

    def _rows(self, database: sqlite3.Connection, select: str) -> list[Sequence[Any]]:
        found = [row for row in database.execute(select) if row[0].partition(":")[2] in self._digests]
        return [(*key.split(":"), *rest) for key, *rest in found]

    def states(self, number: int) -> Iterator[Sequence[Any]]:
        for kind, digest, value, fields, expires in self._states:
            yield self._key(kind, digest, number), value and self._renamed(value, number), fields, expires

    def members(self, number: int) -> Iterator[Sequence[Any]]:
        for kind, digest, member, at, expires in self._members:
            yield self._key(kind, digest, number), self._renamed(member, number), at, expires

    def _renamed(self, text: str, number: int) -> str:
        visitor, user = self._names
        return text.replace(visitor, visitor_name(number)).replace(user, _user_name(number))

    def _key(self, kind: str, digest: str, number: int) -> str:
        name = visitor_name(number) if digest == self._digests[0] else _user_name(number)
        return f"{kind}:{key_digest(TENANT, name)}"
