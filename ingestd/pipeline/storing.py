"""Stores a single event: resolves it and appends its record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from ingestd.api.errors import DuplicateMessage, Unavailable, WriteConflict
from ingestd.api.events import Event, Record
from ingestd.api.journal import IdempotencyKey, Journal
from ingestd.api.store import State, Store
from ingestd.hooks.caller import Hooks

from .backpressure import Backpressure
from .recalling import Recalled, Recaller
from .resolver import Resolved, Resolver, repeated

__all__ = ["Storing", "keep"]


_LARGE = 256 << 10  # bytes


class Storing:
    def __init__(self, hooks: Hooks, store: Store, journal: Journal, backpressure: Backpressure) -> None:
        self._resolver = Resolver(hooks, store, journal)
        self._recaller = Recaller(hooks, self._resolver, journal)
        self._store = store
        self._journal = journal
        self._backpressure = backpressure
        self._going_on: set[asyncio.Task[None]] = set()
        """Tasks of events that could not be appended at the first attempt."""

    def begin(self, event: Event, then: Callable[[Resolved | Exception], None]) -> Awaitable[None]:
        """Store an event. `then` is called once, when the event is durable or with the error that has prevented it.

        `then` is called in the event loop, before the returned awaitable is done or later. It must not raise. Raises
        `Unavailable` if there is no room.
        """
        self._backpressure.check()
        self._backpressure.acquire(1)
        return self._recall(event, then) if self._recaller.works else self._resolve(event, then)

    async def _recall(self, event: Event, then: Callable[[Resolved | Exception], None]) -> None:
        try:
            recalled = await self._recaller.recall(event)
        except Exception as error:  # noqa: BLE001 - `then` gets it
            self._end(then, error)
            return
        if recalled is None:
            await self._resolve(event, then)
        else:
            anew = partial(self._resolve_anew, event, recalled, then)
            await self._append(recalled.resolved, recalled.state, then, anew)

    async def _resolve(self, event: Event, then: Callable[[Resolved | Exception], None]) -> None:
        state = self._store.begin(event.received_at)
        try:
            resolved = await self._resolver.resolve(event, state)
        except Exception as error:  # noqa: BLE001 - `then` gets it
            await self._keep(error, state, then)
        else:
            await self._append(resolved, state, then)

    async def _resolve_anew(
        self, event: Event, recalled: Recalled, then: Callable[[Resolved | Exception], None]
    ) -> None:
        recalled.undo(event)
        await self._resolve(event, then)

    def _append(
        self,
        resolved: Resolved,
        state: State,
        then: Callable[[Resolved | Exception], None],
        anew: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Awaitable[None]:
        """Append the record. `anew` resolves the event again if memory was wrong; without it, the event is freed now.

        The event is larger than its record. Freed at once, it leaves its memory, and so its place in the processor's
        cache, to the next event. Freed when the record is durable, it leaves that to the sixty-fourth.
        """
        if resolved.record is None:
            return self._keep(resolved, state, then)
        context = copy_context()

        def landed(error: Exception | None) -> None:
            if error is None:
                self._end(then, resolved)
                return
            if anew is not None and isinstance(error, WriteConflict):
                work = anew()
            else:
                work = self._keep(repeated(error.value) if isinstance(error, DuplicateMessage) else error, state, then)
            task = asyncio.get_running_loop().create_task(work, context=context)
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)

        if len(resolved.record.body) > _LARGE:
            return self._append_large(resolved.record, state, landed, resolved.claim)
        return self._journal.begin(resolved.record, state, landed, resolved.claim)

    async def _append_large(
        self, record: Record, state: State, then: Callable[[Exception | None], None], claim: IdempotencyKey | None
    ) -> None:
        size, turns = len(record.body), self._backpressure.large_records

        def landed(error: Exception | None) -> None:
            turns.end(size)
            then(error)

        await turns.begin(size)
        await self._journal.begin(record, state, landed, claim)

    async def _keep(
        self, result: Resolved | Exception, state: State, then: Callable[[Resolved | Exception], None]
    ) -> None:
        [kept] = await keep(self._store, [result], state)
        self._end(then, kept)

    def _end(self, then: Callable[[Resolved | Exception], None], result: Resolved | Exception) -> None:
        self._backpressure.release(1)
        then(result)


async def keep(store: Store, results: Sequence[Resolved | Exception], state: State) -> list[Resolved | Exception]:
    """The results of events of one transaction without a record or with an error, once the transaction is durable."""
    try:
        await store.commit(state)
    except Exception as error:  # noqa: BLE001 - it is returned
        # Other events may have seen the writes of a failed one, such as its session. So they are kept, not undone.
        # If they cannot be kept, the backend reports that.
        fatal = not isinstance(error, Unavailable)
        return [error if fatal or isinstance(result, Resolved) else result for result in results]
    return [*results]
