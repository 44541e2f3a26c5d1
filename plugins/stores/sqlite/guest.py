"""Commands beside a running daemon. They write requests into the table `control`, and the daemon executes them.

A row is one transaction: operations on the state, each with the result that the command saw, and records to append.
The daemon executes it like any other transaction. If a result differs, the daemon changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, Unavailable, WriteConflict
from ingestd.api.events import Record

from ..cache import Entries
from ..cached_state import CachedState
from .connections import SqliteConnections
from .removal import Replacement

__all__ = ["CONFLICT", "DONE", "GuestState", "Operation", "Request", "submit"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

DONE, CONFLICT = "done", "conflict"
"""Answers to a request. Any other answer is the reason for a failure."""

_PATIENCE = 5.0
_POLLS = (0.005, 0.05)  # seconds between two looks for the answer: at first, and at most

Operation = Literal["get", "put", "swap", "renew", "delete", "merge", "fields", "push", "pull", "window"]


class Request(msgspec.Struct):
    now: int
    operations: list[tuple[Operation, list[Any], Any]]
    """Name, arguments, and the result that the command saw."""
    records: list[tuple[str, int, bytes]]
    """Type, time, body."""
    replacements: list[Replacement] = []


def _logged(
    operation: Callable[Concatenate[CachedState, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[GuestState, _P], Coroutine[Any, Any, _T]]:
    """The operation, which also logs its arguments and its result."""
    name, signature = cast("Operation", operation.__name__), inspect.signature(operation)

    @wraps(operation)
    async def logged(self: GuestState, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = [_copied(each) for each in bound.args[1:]]
        result: _T = await operation(self, *given, **bound.kwargs)
        self.log.append((name, [*given, bound.kwargs] if bound.kwargs else given, _copied(result)))
        return result

    return logged


def _copied(value: Any) -> Any:
    """A copy of a collection, because the caller may change it before the log is sent."""
    if isinstance(value, Mapping):
        return dict(value)
    return [*value] if isinstance(value, Collection) and not isinstance(value, str | tuple) else value


class GuestState(CachedState):
    """A state on the command's own entries. It logs each operation with its result."""

    def __init__(self, entries: Entries, now: int) -> None:
        super().__init__(entries, now)
        self.log: list[tuple[Operation, list[Any], Any]] = []

    get = _logged(CachedState.get)
    put = _logged(CachedState.put)
    swap = _logged(CachedState.swap)
    renew = _logged(CachedState.renew)
    delete = _logged(CachedState.delete)
    merge = _logged(CachedState.merge)
    fields = _logged(CachedState.fields)
    push = _logged(CachedState.push)
    pull = _logged(CachedState.pull)
    window = _logged(CachedState.window)


async def submit(
    connections: SqliteConnections,
    states: Sequence[GuestState],
    records: Sequence[Record],
    replacements: Sequence[Replacement] = (),
) -> int:
    """Request these transactions as one, and wait for the answer.

    Raises `WriteConflict`, `CommandError`, `Unavailable`.

    Returns the position of the last record. With `replacements`, returns the number of replaced records.
    """
    request = Request(
        states[0].now,
        [operation for state in states for operation in state.log],
        [(record.type, record.at, record.body) for record in records],
        [*replacements],
    )
    try:
        text = msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise CommandError(f"this text cannot be stored: {error}") from error
    number = await connections.change(_ask, text)
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    pause, longest = _POLLS
    while (answer := await connections.read(_answer, number)) is None:
        if asyncio.get_running_loop().time() > deadline and await connections.change(_withdraw, number):
            raise CommandError(
                f"the daemon that has the file did not answer within {_PATIENCE:.0f} s; nothing was changed"
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, longest)
    outcome, position = answer
    if outcome == CONFLICT:
        raise WriteConflict
    if outcome != DONE:
        raise Unavailable(f"the daemon could not execute the command: {outcome}")
    return position


def _ask(connection: sqlite3.Connection, text: bytes) -> int:
    cursor = connection.execute("INSERT INTO control (at, request) VALUES (?, ?)", (times.now(), text))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _answer(connection: sqlite3.Connection, number: int) -> tuple[str, int] | None:
    row = connection.execute(
        "SELECT answer, position FROM control WHERE id = ? AND answer IS NOT NULL", (number,)
    ).fetchone()
    return None if row is None else (str(row[0]), int(row[1]))


def _withdraw(connection: sqlite3.Connection, number: int) -> bool:
    """Delete an unanswered request. Returns False if it has an answer."""
    return connection.execute("DELETE FROM control WHERE id = ? AND answer IS NULL", (number,)).rowcount == 1
