"""The durable state of a sink. A command can read it with or without a running daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.delivery.dead_letters import DeadLetter, read_letters
from ingestd.delivery.operator_commands import OperatorCommands, load_commands
from ingestd.delivery.progress import LAST_FAILURE, PROGRESS, LastFailure, Progress
from ingestd.delivery.sink_consumer import PREFIX

from ..journal_reading import positions_of

__all__ = ["Durable", "letters_of", "read_durable"]

_ATTEMPTS = 20


class Durable(NamedTuple):
    position: int | None
    """The position of the sink's cursor, None without a cursor."""
    progress: Progress | None
    """None before the first record."""
    commands: OperatorCommands
    failure: LastFailure | None

    @property
    def lost(self) -> int:
        """Records that the journal removed before the sink received them.

        All other records since the sink's start are counted, so
        `position - began = delivered + filtered + given_up + lost`.
        """
        if self.position is None or self.progress is None:
            return 0
        counted = self.progress.delivered + self.progress.filtered + self.progress.given_up
        return self.position - self.progress.began - counted


async def _progress(store: Store, name: str) -> Progress | None:
    state = store.begin(times.now())
    progress = await PROGRESS.load(state, name)
    await store.commit(state)
    return progress


async def letters_of(store: Store, name: str, numbers: Collection[int] | None = None) -> AsyncIterator[DeadLetter]:
    """The dead letters of a sink in their order, or those with these numbers."""
    state = store.begin(times.now())
    progress = await PROGRESS.load(state, name)
    if progress is not None and progress.dead:
        async for letter in read_letters(state, name, 0, progress.letters, numbers):
            yield letter


async def read_durable(store: Store, journal: Journal, name: str) -> Durable:
    """The durable state, with a cursor that matches the progress even while the sink is working."""
    progress = await _progress(store, name)
    for _ in range(_ATTEMPTS):
        position = (await positions_of(journal)).get(PREFIX + name)
        before, progress = progress, await _progress(store, name)
        state = store.begin(times.now())
        found = Durable(position, progress, await load_commands(state, name), await LAST_FAILURE.load(state, name))
        await store.commit(state)
        # Every step changes both. If journal and state are separate, it moves the cursor last.
        if progress == before and found.lost >= 0:
            break
    return found
