"""The dead letters of a person. They are copies of records, so they are blanked like the journal's records."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ingestd.api.errors import CommandError, WriteConflict
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.api.times import now
from ingestd.delivery.dead_letters import DeadLetter, read_letters, replace_letter
from ingestd.delivery.progress import load_progress
from ingestd.delivery.sink_consumer import PREFIX

from .traces import Traces, blanked

__all__ = ["DeadLetters"]

_BATCH = 200  # letters blanked in one commit
_BATCH_BYTES = 1024 * 1024  # a commit whose letters reach this size has fewer of them
_ATTEMPTS = 5

_Change = tuple[DeadLetter, bytes]


class DeadLetters:
    """The dead letters of a person in all sinks, including sinks that are not configured any more."""

    def __init__(self, store: Store, journal: Journal, traces: Traces) -> None:
        self._store = store
        self._journal = journal
        self._traces = traces

    async def learn(self) -> None:
        """Collect ids of the person from dead letters: the journal may have removed their records."""
        for sink in await self._sinks():
            async for letter in self._read(sink):
                self._traces.learn(letter.to_record())

    async def count(self) -> int:
        return sum([len(batch) async for _, batch in self._batches()])

    async def blank(self) -> int:
        """Blank the letters, also while a sink uses them. Returns their number.

        Raises `CommandError`, `Unavailable`.
        """
        done: set[tuple[str, int]] = set()
        for _ in range(_ATTEMPTS):
            is_clean = True
            async for sink, batch in self._batches():
                is_clean = False
                state = self._store.begin(now())
                replaced = [letter.number for letter, body in batch if await replace_letter(state, sink, letter, body)]
                try:
                    await self._store.commit(state)
                except WriteConflict:  # the next attempt finds them again
                    continue
                done.update((sink, number) for number in replaced)
            if is_clean:
                return len(done)
        raise CommandError("the dead letters of this person keep changing; run the command again")

    async def _sinks(self) -> list[str]:
        """The sinks with a cursor in the journal. A sink without a cursor has received nothing."""
        names = [cursor.name for cursor in await self._journal.cursors()]
        return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]

    async def _read(self, sink: str) -> AsyncIterator[DeadLetter]:
        state = self._store.begin(now())
        progress = await load_progress(state, sink)
        if progress is not None and progress.dead:
            async for letter in read_letters(state, sink, 0, progress.letters):
                yield letter

    async def _batches(self) -> AsyncIterator[tuple[str, list[_Change]]]:
        """The person's dead letters, each with its blanked body. A batch has letters of one sink."""
        for sink in await self._sinks():
            batch: list[_Change] = []
            size = 0
            async for letter in self._read(sink):
                body = blanked(letter.to_record(), self._traces)
                if body is None:
                    continue
                batch.append((letter, body))
                size += len(letter.record) + len(body)
                if len(batch) == _BATCH or size >= _BATCH_BYTES:
                    yield sink, batch
                    batch, size = [], 0
            if batch:
                yield sink, batch
