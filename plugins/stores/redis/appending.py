"""Appending events to the journal: each with its transaction and its claim, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, cast

from ingestd.api.errors import DuplicateMessage, Failed, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append

from .link import Link, encode, raw, refusal
from .state import Transaction

__all__ = ["Appending", "failure_of", "packed"]

_TOGETHER = 250  # events of one operation; Redis does nothing else meanwhile


class Appending:
    """One call of `append`. Its events leave in parts, each after the answer to the part before it."""

    __slots__ = ("_appends", "_errors", "_link", "_part", "_refused", "_store_id", "_stored", "_then")

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
        self._part = self._appends[len(self._errors) : len(self._errors) + _TOGETHER]
        self._store_id = self._link.store_id
        self._refused: dict[int, Exception] = {}
        """Events that cannot be sent, by their index in the part."""
        events = []
        for index, append in enumerate(self._part):
            try:
                events.append(_event(append))
            except (Unavailable, Failed) as error:
                self._refused[index] = error
        if not events:
            self._settle(iter(()), ())
            return
        try:
            self._link.begin(["append", 0, events], self._answered, len(events))
        except Unavailable as error:
            self._answered(None, error)

    def _answered(self, answer: Any, error: Exception | None) -> None:
        if error is not None:
            self._settle(repeat(error), ())
            return
        results, last, version = answer
        self._settle(map(failure_of, results), (last, version, self._store_id))

    def _settle(self, results: Iterator[Exception | None], journal: tuple[Any, ...]) -> None:
        records = []
        for index, append in enumerate(self._part):
            error = self._refused.get(index) or next(results)
            self._errors.append(error)
            _end(append, error)
            if error is None and append.record is not None:
                records.append(append.record)
        if journal:
            self._stored(records, *journal)
        rest = self._appends[len(self._errors) :]
        if rest and not any(isinstance(error, WriteConflict) for error in self._errors):
            self.begin()
            return
        for append in rest:
            self._errors.append(WriteConflict())
            _end(append, self._errors[-1])
        self._then(self._errors)


def _end(append: Append, error: Exception | None) -> None:
    transaction = cast("Transaction", append.state)
    if error is None:
        transaction.committed()
    else:
        transaction.undo()


def _event(append: Append) -> Any:
    state, record, claim = cast("Transaction", append.state), append.record, append.claim
    checks, writes, contents = state.take()
    event = [
        state.now,
        None if record is None else packed(record),
        None if claim is None else (f"claim:{claim.key}", claim.value, claim.ttl),
        checks,
    ]
    if writes or contents:
        event += writes, contents
    return encode(event)


def packed(record: Record) -> tuple[Any, ...]:
    """A record as batch.lua takes it."""
    return record.type, record.at, raw(record.body)


def failure_of(answer: Any) -> Exception | None:
    """The exception for the answer to a commit, or None."""
    if answer is True:
        return None
    match answer:
        case ["claimed", value]:
            return DuplicateMessage(value)
        case ["stale"]:
            return WriteConflict()
        case ["failed", message]:
            return refusal(message)
    return None
