"""Appending events to the journal: each with its transaction and its claim, in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random
from typing import Any, cast

from ingestd.api.errors import DuplicateMessage, Failed, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append

from .link import Link, encode, raw, refusal
from .state import Transaction

__all__ = ["Appending", "failure_of", "packed"]

_APART = 0.005  # seconds: longer than most events take
_TOGETHER = 250  # events of one operation; Redis does nothing else meanwhile


class Appending:
    """One call of `append`. Its events leave in parts, each after the answer to the part before it."""

    __slots__ = ("_appends", "_errors", "_has_conflict", "_link", "_part", "_refused", "_store_id", "_stored", "_then")

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
        self._has_conflict = False

    def begin(self) -> None:
        """Send the next part."""
        done = len(self._errors)
        self._part = self._appends[done : done + _TOGETHER]
        self._store_id = self._link.store_id
        self._refused: dict[int, Exception] | None = None
        """Events of the part that cannot be sent, by index."""
        events = []
        for index, append in enumerate(self._part):
            try:
                events.append(_event(append))
            except (Unavailable, Failed) as error:
                self._refused = {**(self._refused or {}), index: error}
        if not events:
            self._settle([])
            return
        try:
            self._link.begin(["append", 0, events], self._answered, len(events))
        except Unavailable as error:
            self._answered(None, error)

    def _answered(self, answer: Any, error: Exception | None) -> None:
        if error is not None:
            self._settle([error] * (len(self._part) - len(self._refused or ())))
            return
        results, last, version = answer
        self._settle([None if result is True else failure_of(result) for result in results], (last, version))

    def _settle(self, results: list[Exception | None], journal: tuple[int, int] | None = None) -> None:
        """End the transactions of the part. `journal`: its last position and its version."""
        if self._refused is not None:
            for index, refused in self._refused.items():
                results.insert(index, refused)
        records = []
        for append, error in zip(self._part, results, strict=True):
            state: Any = append.state
            if error is not None:
                state.undo()
                self._has_conflict = self._has_conflict or isinstance(error, WriteConflict)
                continue
            state.committed()
            if append.record is not None:
                records.append(append.record)
        self._errors += results
        if journal is not None:
            self._stored(records, *journal, self._store_id)
        if self._has_conflict:
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
    """An event as batch.lua takes it. Raises `Unavailable`, `Failed`."""
    state: Any = append.state
    record, claim = append.record, append.claim
    checks, writes, contents = state.log()
    packed_record = None if record is None else packed(record)
    packed_claim = None if claim is None else (f"claim:{claim.key}", claim.value, claim.ttl)
    if writes or contents:
        return encode((state.now, packed_record, packed_claim, checks, writes, contents))
    return encode((state.now, packed_record, packed_claim, checks))


def packed(record: Record) -> tuple[Any, ...]:
    """A record as batch.lua takes it."""
    return record.type, record.at, raw(record.body)


def failure_of(answer: Any) -> Exception | None:
    """The exception for the answer to a commit, or None."""
    match answer:
        case ["claimed", value]:
            return DuplicateMessage(value)
        case ["stale"]:
            return WriteConflict()
        case ["failed", message]:
            return refusal(message)
    return None
