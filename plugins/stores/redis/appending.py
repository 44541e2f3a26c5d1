"""Appending events to the journal: each with its transaction and its idempotency key, in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random
from typing import Any, cast

from ingestd.api.errors import DuplicateMessage, Failed, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append

from .link import Link
from .operations import encode, raw
from .refusals import refusal
from .state import Transaction

__all__ = ["Appending", "failure_of", "packed"]

_APART = 0.005  # seconds: longer than most events take
_TOGETHER = 250  # events of one operation; Redis does nothing else meanwhile


class Appending:
    """One call of `append`. Its events leave in parts, each after the answer to the part before it."""

    __slots__ = ("_appends", "_errors", "_link", "_part", "_store_id", "_stored", "_then")

    def __init__(
        self,
        link: Link,
        appends: Sequence[Append],
        then: Callable[[list[Exception | None]], None],
        stored: Callable[[Sequence[Record], int, int, str], None],
    ) -> None:
        """`stored` is called with stored records, the last position, the journal's version, and the id of the store."""
        self._link = link
        self._appends = appends
        self._then = then
        self._stored = stored
        self._errors: list[Exception | None] = []
        """The results so far."""

    def begin(self) -> None:
        """Send the next part. Events that cannot be sent stand in it as errors."""
        done = len(self._errors)
        self._part = [_event(append) for append in self._appends[done : done + _TOGETHER]]
        self._store_id = self._link.store_id
        events = [event for event in self._part if not isinstance(event, Exception)]
        try:
            self._link.begin(["append", 0, events, self._link.placement], self._answered, len(events))
        except Unavailable as error:
            self._answered(None, error)

    def _answered(self, answer: Any, error: Exception | None) -> None:
        """End the transactions of the part."""
        results, last, version = answer or ((), 0, 0)
        coming, records, has_conflict = iter(results), [], False
        for append, event in zip(self._appends[len(self._errors) :], self._part, strict=False):
            state: Any = append.state
            if (failure := event if isinstance(event, Exception) else error or failure_of(next(coming))) is not None:
                state.undo()
                has_conflict = has_conflict or isinstance(failure, WriteConflict)
            else:
                state.committed()
                if append.record is not None:
                    records.append(append.record)
            self._errors.append(failure)
        if error is None:
            self._stored(records, last, version, self._store_id)
        if has_conflict:
            self._end_with_conflict()
        elif len(self._errors) < len(self._appends):
            self.begin()
        else:
            self._then(self._errors)

    def _end_with_conflict(self) -> None:
        for append in self._appends[len(self._errors) :]:
            cast("Transaction", append.state).undo()
            self._errors.append(WriteConflict())
        # After a random time: requests that have read each other's writes would conflict again if they ran together.
        asyncio.get_running_loop().call_later(random() * _APART, self._then, self._errors)  # noqa: S311 - no secret


def _event(append: Append) -> Any:
    """An event as batch.lua takes it, or the error if it cannot be stored."""
    state: Any = append.state
    record, key = append.record, append.idempotency_key
    packed_record = None if record is None else packed(record)
    packed_key = None if key is None else (f"claim:{key.key}", key.value, key.ttl)
    try:
        return encode((state.now, packed_record, packed_key, *state.log()))
    except (Unavailable, Failed, WriteConflict) as error:
        return error


def packed(record: Record) -> tuple[Any, ...]:
    """A record as batch.lua takes it."""
    return record.type, record.at, raw(record.body)


def failure_of(answer: Any) -> Exception | None:
    """The exception for the answer to a commit, or None."""
    if answer is True:
        return None
    match answer:
        case ["duplicate", value]:
            return DuplicateMessage(value)
        case ["stale"]:
            return WriteConflict()
        case ["outdated"]:
            return Unavailable("A tenant has just been moved to another partition. Send the request again.")
        case ["failed", message]:
            return refusal(message)
    return None
