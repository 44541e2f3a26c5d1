"""What is durable of a sink, as any command may read it: beside the daemon that moves it, and without one."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api import times
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.delivery.operator_commands import OperatorCommands, load_commands
from ingestd.delivery.progress import LastFailure, Progress, load_last_failure, load_progress
from ingestd.delivery.sink_consumer import PREFIX

__all__ = ["Durable", "read_durable", "read_progress"]

_ATTEMPTS = 20


class Durable(NamedTuple):
    place: int | None
    """The position of the last record it is done with; None where the journal does not know it."""
    progress: Progress | None
    """None before its first record."""
    orders: OperatorCommands
    trouble: LastFailure | None

    @property
    def lost(self) -> int:
        """Records that were removed from the journal before the sink had them.

        Else all behind its start are counted: `place - began = delivered + filtered + given_up + lost`.
        """
        if self.place is None or self.progress is None:
            return 0
        counted = self.progress.delivered + self.progress.filtered + self.progress.given_up
        return self.place - self.progress.began - counted


async def read_progress(store: Store, name: str) -> Progress | None:
    state = store.begin(times.now())
    progress = await load_progress(state, name)
    await store.commit(state)
    return progress


async def read_durable(store: Store, journal: Journal, name: str) -> Durable:
    """All of it. The place is that of the progress, though the sink goes on meanwhile."""
    progress = await read_progress(store, name)
    for _ in range(_ATTEMPTS):
        place = next((each.position for each in await journal.cursors() if each.name == PREFIX + name), None)
        before, progress = progress, await read_progress(store, name)
        state = store.begin(times.now())
        found = Durable(place, progress, await load_commands(state, name), await load_last_failure(state, name))
        await store.commit(state)
        # Every step moves both. Where they are kept apart, it moves the place last.
        if progress == before and found.lost >= 0:
            break
    return found
