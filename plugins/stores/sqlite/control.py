"""The daemon's side of the table `control`: it runs the requests of commands, in order."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from ingestd.api import times
from ingestd.api.errors import Failed, IngestdError
from ingestd.api.events import Record
from ingestd.api.store import Field

from ..cached_state import CachedState
from ..entry import set_key
from .commits import Commits
from .database import Database
from .guest import CONFLICT, DONE, Operation, Request
from .removal import Replacement, replace_bodies

__all__ = ["apply_requests"]

_log = logging.getLogger("ingestd.sqlite")

_KEEP_ANSWERS = 60_000  # milliseconds; a command looks for its answer every 50, for some seconds


class _Withdrawn(IngestdError):
    """The command has given up, and has reported that nothing was changed."""


async def apply_requests(database: Database, commits: Commits) -> bool:
    """Run all waiting requests. Returns whether there were any. Raises `Unavailable`; the next call runs the rest."""
    waiting, answered = await database.connections.read(_read_requests)
    if answered:
        await commits.commit(also=_clear)
    for number, text in waiting:
        try:
            await _apply(database, commits, number, text)
        except _Withdrawn:
            _log.info("a command gave up before its request was done")
    return bool(waiting)


async def _apply(database: Database, commits: Commits, number: int, text: bytes) -> None:
    try:
        request = msgspec.json.decode(text, type=Request)
        agreed, state = await _replay(database, request)
        records = [Record(*record) for record in request.records] if agreed else []
        replacements = request.replacements if agreed else []
        answer = DONE if agreed else CONFLICT
        if replacements:
            commits.tail.forget()
        await commits.commit(state, records, also=partial(_do, number, answer, replacements))
        if replacements:
            database.cleaner.records_blanked()
    except (msgspec.DecodeError, TypeError, Failed) as error:
        # The request is of another version, or cannot be stored. It must not block later requests.
        _log.warning("a command's request cannot be done: %s", error)
        await commits.commit(also=partial(_do, number, str(error), []))


async def _replay(database: Database, request: Request) -> tuple[bool, CachedState]:
    """Run the operations. If a result differs from the one that the command saw, undo all and return False."""
    state = CachedState(database.entries, request.now)
    keys = frozenset(key for name, arguments, _ in request.operations for key in _entries_of(name, arguments[0]))
    database.entries.pinned = keys
    try:
        while not all(database.entries.known(key) for key in keys):
            for key in keys:
                await state.look(key)
        # All entries are in memory now. So nothing below pauses, and no transaction sees another one half done.
        for key in keys:
            await state.look(key)
        before = {entry: entry.saved() for entry in state.seen}
        agreed = False
        try:
            agreed = await _same_results(state, request)
        finally:
            if not agreed:
                for entry, was in before.items():
                    entry.restore(was)
                state.written.clear()
        return agreed, state
    finally:
        database.entries.pinned = frozenset()


def _entries_of(name: Operation, key: str) -> tuple[str, ...]:
    if name in {"push", "pull", "window"}:
        return (set_key(key),)
    return (key, set_key(key)) if name == "delete" else (key,)


async def _same_results(state: CachedState, request: Request) -> bool:
    for name, arguments, expected in request.operations:
        result: Any = None
        if name == "merge":
            result = await state.merge(arguments[0], msgspec.convert(arguments[1], dict[str, Field]), **arguments[2])
        elif name == "push":
            await state.push(*arguments[:3], **arguments[3])
        else:
            result = await getattr(state, name)(*arguments)
        if msgspec.json.decode(msgspec.json.encode(result)) != expected:
            return False
    return True


def _read_requests(connection: sqlite3.Connection) -> tuple[list[tuple[int, bytes]], int]:
    waiting = connection.execute("SELECT id, request FROM control WHERE answer IS NULL ORDER BY id").fetchall()
    (answered,) = connection.execute(
        "SELECT count(*) FROM control WHERE answer IS NOT NULL AND at < ?", (times.now() - _KEEP_ANSWERS,)
    ).fetchone()
    return waiting, answered


def _clear(connection: sqlite3.Connection, _: int) -> None:
    connection.execute("DELETE FROM control WHERE answer IS NOT NULL AND at < ?", (times.now() - _KEEP_ANSWERS,))


def _do(
    number: int, answer: str, replacements: Sequence[Replacement], connection: sqlite3.Connection, position: int
) -> None:
    """Answer in the commit that does the request, so that it is done once. The request is cleared: it is private."""
    result = replace_bodies(connection, replacements) if replacements else position
    done = connection.execute(
        "UPDATE control SET answer = ?, position = ?, request = x'' WHERE id = ? AND answer IS NULL",
        (answer, result, number),
    )
    if done.rowcount != 1:
        raise _Withdrawn("the request is gone")
