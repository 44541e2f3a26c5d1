"""The state on Redis: units of work, and a walk through all of a kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ingestd.store import State, Store

from .database import Database
from .journal import RedisJournal
from .state import RedisState
from .step import StepState

__all__ = ["RedisStore"]

_SCANNED = 1000  # keys of a step


class RedisStore(Store):
    distant = True

    def __init__(self, database: Database, journal: RedisJournal) -> None:
        self._database = database
        self._journal = journal

    def begin(self, now: int, *, step: bool = False) -> State:
        database = self._database
        return StepState(database.link, now) if step else RedisState(database.link, now, database.memory)

    async def commit(self, state: State) -> None:
        if isinstance(state, StepState):
            await self._journal.append((), state)

    def discard(self, state: State) -> None:
        if isinstance(state, StepState):
            state.undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        seen: set[bytes] = set()
        position = 0
        match = _literal(f"{self._database.prefix}{kind}:") + "*"
        while True:
            position, keys = (await self._database.pipeline(("SCAN", position, "MATCH", match, "COUNT", _SCANNED)))[0]
            new = [key for key in keys if key not in seen]
            seen.update(new)
            (values,) = await self._database.pipeline(("MGET", *new)) if new else ([],)
            for key, value in zip(new, values, strict=True):
                if value is not None:
                    yield key.decode()[len(self._database.prefix) :], value.decode().partition("|")[2]
            if int(position) == 0:
                return


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
