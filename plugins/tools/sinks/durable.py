"""The durable state of a sink. A command can read it with or without a running daemon."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api import times
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.delivery.operator_commands import OperatorCommands, load_commands
from ingestd.delivery.progress import LAST_FAILURE, PROGRESS, LastFailure, Progress
from ingestd.delivery.sink_consumer import PREFIX

__all__ = ["Durable", "read_durable", "read_progress"]

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


async def read_progress(store: Store, name: str) -> Progress | None:
    state = store.begin(times.now())
    progress = await PROGRESS.load(state, name)
    await store.commit(state)
    return progress


async def read_durable(store: Store, journal: Journal, name: str) -> Durable:
    """The durable state, with a cursor that matches the progress even while the sink is working."""
    progress = await read_progress(store, name)
    for _ in range(_ATTEMPTS):
        position = next((each.position for each in await journal.cursors() if each.name == PREFIX + name), None)
        before, progress = progress, await read_progress(store, name)
        state = store.begin(times.now())
        found = Durable(position, progress, await load_commands(state, name), await LAST_FAILURE.load(state, name))
        await store.commit(state)
        # Every step changes both. If journal and state are separate, it moves the cursor last.
        if progress == before and found.lost >= 0:
            break
    return found
