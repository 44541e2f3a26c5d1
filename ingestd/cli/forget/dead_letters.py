"""The dead letters of all sinks: copies of records, so a person is taken out of them as out of the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ingestd.api.errors import CommandError, Conflict
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.api.times import now
from ingestd.delivery.dead_letters import DeadLetter, read_letters, replace_letter
from ingestd.delivery.progress import load_progress
from ingestd.delivery.sink_consumer import PREFIX

from .traces import Traces, blanked

__all__ = ["DeadLetters"]

_UNIT = 200  # letters blanked in one commit,
_UNIT_BYTES = 1024 * 1024  # or fewer, if they are long
_ATTEMPTS = 5

_Change = tuple[DeadLetter, bytes]


class DeadLetters:
    """Those that tell of a person, also of sinks that are not configured any more."""

    def __init__(self, store: Store, journal: Journal, traces: Traces) -> None:
        self._store = store
        self._journal = journal
        self._traces = traces

    async def learn(self) -> None:
        """Find out who the person is from records that the journal may not have any more."""
        for sink in await self._sinks():
            async for letter in self._read(sink):
                self._traces.learn(letter.to_record())

    async def count(self) -> int:
        return sum([len(unit) async for _, unit in self._units()])

    async def blank(self) -> int:
        """Returns how many there were. A sink may go on with them meanwhile. Raises `CommandError`, `Unavailable`."""
        done: set[tuple[str, int]] = set()
        for _ in range(_ATTEMPTS):
            is_clean = True
            async for sink, unit in self._units():
                is_clean = False
                state = self._store.begin(now())
                replaced = [letter.number for letter, body in unit if await replace_letter(state, sink, letter, body)]
                try:
                    await self._store.commit(state)
                except Conflict:  # they are found again
                    continue
                done.update((sink, number) for number in replaced)
            if is_clean:
                return len(done)
        raise CommandError("the dead letters of this person keep changing; run it again")

    async def _sinks(self) -> list[str]:
        """Who has no place in the journal has had no record."""
        names = [cursor.name for cursor in await self._journal.cursors()]
        return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]

    async def _read(self, sink: str) -> AsyncIterator[DeadLetter]:
        state = self._store.begin(now())
        progress = await load_progress(state, sink)
        if progress is not None and progress.dead:
            async for letter in read_letters(state, sink, 0, progress.letters):
                yield letter

    async def _units(self) -> AsyncIterator[tuple[str, list[_Change]]]:
        """Letters that tell of the person, each with its record's body without them, some of a sink at a time."""
        for sink in await self._sinks():
            unit: list[_Change] = []
            size = 0
            async for letter in self._read(sink):
                body = blanked(letter.to_record(), self._traces)
                if body is None:
                    continue
                unit.append((letter, body))
                size += len(letter.record) + len(body)
                if len(unit) == _UNIT or size >= _UNIT_BYTES:
                    yield sink, unit
                    unit, size = [], 0
            if unit:
                yield sink, unit
