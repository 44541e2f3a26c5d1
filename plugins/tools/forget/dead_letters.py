"""The dead letters of sinks, of which `forget` blanks records and reasons.

They are copies of records, so they are blanked like the journal's records. A reason is a text of the sink. It may quote
any record of its batch, and nobody can tell whose. So all reasons of the tenant go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ingestd.api.errors import CommandError, WriteConflict
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.api.times import now
from ingestd.consumers.erasures import REMOVED
from ingestd.delivery.dead_letters import DeadLetter, change_letter
from ingestd.delivery.progress import LAST_FAILURE

from ..journal_reading import sinks_of
from ..sinks.durable import letters_of
from .traces import ERASURE, Traces, blanked

__all__ = ["DeadLetters"]

_BATCH = 200  # letters blanked in one commit
_BATCH_BYTES = 1024 * 1024  # a commit whose letters reach this size has fewer of them
_ATTEMPTS = 5


class _Change(NamedTuple):
    letter: DeadLetter
    changed: DeadLetter
    is_persons: bool


class DeadLetters:
    """The dead letters of a tenant in all sinks, including sinks that are not configured any more."""

    def __init__(self, store: Store, journal: Journal, traces: Traces) -> None:
        self._store = store
        self._journal = journal
        self._traces = traces

    async def learn(self) -> None:
        """Collect ids of the person from dead letters: the journal may have removed their records."""
        for sink in await sinks_of(self._journal):
            async for letter in letters_of(self._store, sink):
                self._traces.learn(letter.to_record())

    async def count(self) -> int:
        """The number of the person's letters."""
        return sum([sum(each.is_persons for each in batch) async for _, batch in self._batches()])

    async def blank(self) -> int:
        """Blank the letters, also while a sink uses them. Returns the number of the person's.

        Raises `CommandError`, `Unavailable`.
        """
        done: set[tuple[str, int]] = set()
        for _ in range(_ATTEMPTS):
            is_clean = True
            async for sink, batch in self._batches():
                is_clean = False
                state = self._store.begin(now())
                replaced = [each for each in batch if await change_letter(state, sink, each.letter, each.changed)]
                try:
                    await self._store.commit(state)
                except WriteConflict:  # the next attempt finds them again
                    continue
                done.update((sink, each.letter.number) for each in replaced if each.is_persons)
            if is_clean:
                return len(done)
        raise CommandError("the dead letters of this person keep changing; run the command again")

    async def blank_failures(self) -> None:
        """Remove the reasons why sinks fail at present. A running daemon removes its own, and keeps what it finds."""
        for sink in await sinks_of(self._journal):
            state = self._store.begin(now())
            failure = await LAST_FAILURE.load(state, sink)
            if failure is not None:
                await LAST_FAILURE.save(state, msgspec.structs.replace(failure, reason=REMOVED), sink)
                with suppress(WriteConflict):  # it has failed once more, or works again
                    await self._store.commit(state)

    async def _batches(self) -> AsyncIterator[tuple[str, list[_Change]]]:
        """The letters to change. A batch has letters of one sink."""
        for sink in await sinks_of(self._journal):
            batch: list[_Change] = []
            size = 0
            async for letter in letters_of(self._store, sink):
                change = self._change(letter)
                if change is None:
                    continue
                batch.append(change)
                size += letter.size + change.changed.size
                if len(batch) == _BATCH or size >= _BATCH_BYTES:
                    yield sink, batch
                    batch, size = [], 0
            if batch:
                yield sink, batch

    def _change(self, letter: DeadLetter) -> _Change | None:
        record = letter.to_record()
        if letter.type == ERASURE or record.envelope().tenant != self._traces.tenant:
            return None
        body = blanked(record, self._traces)
        if body is None and letter.reason == REMOVED:
            return None
        kept = letter.record if body is None else msgspec.Raw(body)
        changed = msgspec.structs.replace(letter, record=kept, reason=REMOVED)
        return _Change(letter, changed, body is not None)
