"""Group commit of a guest: transactions of events that gather while one request waits are the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ingestd.api.errors import DuplicateMessage, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append

from ..cache import Entries
from ..cached_state import CachedState
from .connections import SqliteConnections
from .guest import GuestState, submit

__all__ = ["GuestCommits", "put_idempotency_key"]

Then = Callable[[Sequence[Exception | None]], None]


async def put_idempotency_key(append: Append) -> str | None:
    """Put the idempotency key into the transaction. Returns the value of an earlier append with it, which stays."""
    new = append.idempotency_key
    if new is None or await append.state.swap(new.key, None, new.value, new.ttl):
        return None
    return await append.state.get(new.key)


class GuestCommits:
    """The transactions share their entries until all are answered, so that each sees the writes of those before it.

    A request fails as a whole. Then all transactions with the same entries get a conflict, or the reason.
    """

    def __init__(self, connections: SqliteConnections, new_entries: Callable[[], Entries]) -> None:
        self._connections = connections
        self._new_entries = new_entries
        self._entries: Entries | None = None
        self._waiting: list[tuple[Sequence[Append], Then]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, now: int) -> GuestState:
        if self._entries is None:
            self._entries = self._new_entries()
        return GuestState(self._entries, now)

    def append(self, appends: Sequence[Append], then: Then) -> None:
        """As `Journal.append`."""
        self._waiting.append((appends, then))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # others may come in the same turn of the loop
            calls, self._waiting = self._waiting, []
            appends = [append for some, _ in calls for append in some]
            errors = await self._submit(appends)
            if any(isinstance(error, Exception) and not isinstance(error, DuplicateMessage) for error in errors):
                self._entries = None
                calls, self._waiting = [*calls, *self._waiting], []
            elif not self._waiting:
                self._entries = None
            given = iter(errors)
            for some, then in calls:
                then([next(given, WriteConflict()) for _ in some])
        self._task = None

    async def _submit(self, appends: Sequence[Append]) -> list[Exception | None]:
        errors: list[Exception | None] = [None] * len(appends)
        states: list[GuestState] = []
        records: list[Record] = []
        try:
            for index, append in enumerate(appends):
                assert isinstance(append.state, GuestState)
                states.append(append.state)
                if (earlier := await put_idempotency_key(append)) is not None:
                    errors[index] = DuplicateMessage(earlier)
                elif append.record is not None:
                    records.append(append.record)
            if states and (records or any(state.written for state in states)):
                await submit(self._connections, states, records)
        except Exception as error:  # noqa: BLE001 - it is the result of each of them
            return [error] * len(appends)
        for state, each in zip(states, errors, strict=True):
            if each is None:
                CachedState.committed(state)
        return errors
