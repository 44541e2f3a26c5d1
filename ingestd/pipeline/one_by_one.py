"""Stores the events of a batch on a local store, one after the other, most of them in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence

from ingestd.api.errors import DuplicateMessage
from ingestd.api.events import Event
from ingestd.api.journal import Append, Journal
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State, Store

from .chains import UnderWay, beside_each_other, ties
from .pace import Pace
from .resolver import Resolved, Resolver, repeated
from .storing import keep

__all__ = ["OneByOne"]


class OneByOne:
    """Stores one batch. Each event becomes a record before the next one is read.

    So its objects are freed while they are still in the processor's cache: an event takes 64 µs of CPU. With the bodies
    of whole batches in memory it took 73. While an event waits, events without a common ordering key continue.
    """

    def __init__(self, resolver: Resolver, store: Store, journal: Journal, pace: Pace) -> None:
        self._resolver = resolver
        self._store = store
        self._journal = journal
        self._pace = pace
        self._under_way = UnderWay()
        # By the index of the event among those that are not refused while they are read:
        self._results: list[Resolved | Exception | None] = []
        self._appends: list[Append | None] = []
        self._loose: dict[State, list[int]] = {}
        """Events without a record or with an error, by transaction. These transactions must become durable, too."""
        self._messages: dict[str, int] = {}
        """The first event with each message."""
        self._repeats: list[tuple[int, int]] = []
        """Events that repeat a message, each with the earlier event whose result it shares."""

    async def store(self, events: Iterable[Event | None]) -> list[Resolved | Exception]:
        """The result of each event. None stands for an event that was refused, and has no result."""
        await beside_each_other(self._resolve, events)
        await self._append()
        if self._loose:
            await asyncio.gather(*(self._settle(state, places) for state, places in self._loose.items()))
        for place, first in self._repeats:
            result = self._results[first]
            if isinstance(result, Resolved):
                result = Resolved(Outcome.DUPLICATE, result.session)
            self._results[place] = result
        return [result for result in self._results if result is not None]

    async def _resolve(self, coming: Iterator[Event | None]) -> None:
        shared: State | None = None
        for event in coming:
            if event is not None:
                place = len(self._results)
                self._results.append(None)
                self._appends.append(None)
                message_id = event.message_id
                # An event with a message has a separate transaction: the append stores its idempotency key.
                part = self._journal.begin_part(shared) if shared is not None and message_id is None else None
                if shared is not None and part is not None:
                    state = shared
                else:
                    state, part = self._store.begin(event.received_at), 0
                    if message_id is None:
                        shared = state
                tied = ties(event)
                before = self._under_way.begin(place, tied)
                if before:
                    await self._wait(event, state, before)
                if message_id is not None and message_id in self._messages:
                    self._repeats.append((place, self._messages[message_id]))
                else:
                    try:
                        resolved = await self._resolver.resolve(event, state)
                    except Exception as error:  # noqa: BLE001 - it is the answer of this event alone
                        self._results[place] = error
                        self._loosen(state, place)
                    else:
                        self._take(place, resolved, state, part, message_id)
                # If the writes of this event cannot be stored, no other event may fail.
                if self._appends[place] is None:
                    shared = None
                del event
                self._under_way.end(place, tied)
            if self._pace.is_over():
                await self._pace.pause()

    async def _wait(self, event: Event, state: State, before: Iterable[asyncio.Future[None]]) -> None:
        with contextlib.suppress(Exception):  # `resolve` raises it again
            # Looked up now, so that the look-ups of several events run together.
            await self._resolver.earlier(event, state)
        for ended in before:
            await asyncio.shield(ended)

    def _take(self, place: int, resolved: Resolved, state: State, part: int, message_id: str | None) -> None:
        self._results[place] = resolved
        if resolved.record is None:
            self._loosen(state, place)
            return
        self._appends[place] = Append(resolved.record, state, resolved.claim, part)
        if message_id is not None:
            self._messages[message_id] = place

    def _loosen(self, state: State, place: int) -> None:
        self._loose.setdefault(state, []).append(place)

    async def _append(self) -> None:
        appends = [each for each in self._appends if each is not None]
        errors = await self._journal.append_each(appends)
        if errors.count(None) == len(errors):  # as nearly always
            return
        places = [place for place, each in enumerate(self._appends) if each is not None]
        for place, each, error in zip(places, appends, errors, strict=True):
            if error is not None:
                self._results[place] = repeated(error.value) if isinstance(error, DuplicateMessage) else error
                self._loosen(each.state, place)

    async def _settle(self, state: State, places: Sequence[int]) -> None:
        results = [result for place in places if (result := self._results[place]) is not None]
        for place, result in zip(places, await keep(self._store, results, state), strict=True):
            self._results[place] = result
