"""Stores the events of a batch: resolves each as if it had come alone, and commits all together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence

from ingestd.api.errors import DuplicateMessage, WriteConflict
from ingestd.api.events import Event
from ingestd.api.journal import Append, Journal
from ingestd.api.store import Store
from ingestd.hooks.caller import Hooks

from .backpressure import Backpressure
from .chains import beside_each_other, chains
from .members import Member, result_of
from .one_by_one import OneByOne
from .pace import Pace
from .recalling import Recaller
from .resolver import Resolved, Resolver, repeated
from .storing import keep
from .stretches import Stretches

__all__ = ["Together"]


class Together:
    def __init__(self, hooks: Hooks, store: Store, journal: Journal, backpressure: Backpressure) -> None:
        self._resolver = Resolver(hooks, store, journal)
        self._recaller = Recaller(hooks, self._resolver, journal)
        self._store = store
        self._journal = journal
        self._backpressure = backpressure

    async def store(self, events: Iterable[Event | None], *, going_on: bool = False) -> list[Resolved | Exception]:
        """Store events as if one after the other, but in one commit. An event's error stands in place of its result.

        `events` are read one by one, with pauses for other tasks, because reading takes time. None stands for an event
        that was refused, and has no result. The caller has the `Backpressure.batch_slot`. Raises `Unavailable` while no
        more events are stored, but not with `going_on`: other events of the batch are stored then.
        """
        coming, pace = iter(events), Pace()
        for event in coming:
            if pace.is_over():
                await pace.pause()
            if event is not None:
                if not going_on:
                    self._backpressure.check()
                break
        else:
            return []
        coming = itertools.chain(iter([event]), coming)  # an iterator, so that this event is freed when it is done, too
        del event
        if not self._store.distant:
            return await OneByOne(self._resolver, self._store, self._journal, pace).store(coming)
        members = await self._resolve_far(coming, pace)
        stored: list[Resolved | Exception] = [each.result for each in members if isinstance(each.result, Resolved)]
        if len(stored) == len(members):  # as nearly always
            return stored
        loose = [each for each in members if each.first is None and not isinstance(each.result, Resolved)]
        if loose:
            await asyncio.gather(*map(self._settle, loose))
        return [result_of(member) for member in members]

    async def _resolve_far(self, events: Iterable[Event | None], pace: Pace) -> list[Member]:
        """Read all events, and resolve those that memory can resolve. The requests of the others leave together."""
        members: list[Member] = []
        stretches = Stretches(self._resolver, self._recaller, self._store, {})
        for event in events:
            if pace.is_over():
                await pace.pause()
            if event is not None:
                member = Member(event)
                members.append(member)
                await stretches.recall(member)

        async def resolve(coming: Iterator[Sequence[int]]) -> None:
            for chain in coming:
                await stretches.resolve([members[place] for place in chain])

        await beside_each_other(resolve, chains([member.event for member in members]))
        await self._append_all(members)
        if stale := [member for member in members if isinstance(member.result, WriteConflict)]:
            await self._store_anew(stale, stretches)
        return members

    async def _store_anew(self, members: Sequence[Member], stretches: Stretches) -> None:
        """Store events again whose memory was wrong, or which came behind such an event."""
        for member in members:
            member.result = None
        wrong = [member for member in members if member.recalled is not None]

        async def resolve(coming: Iterator[Sequence[int]]) -> None:
            for chain in coming:
                await stretches.resolve_anew([wrong[place] for place in chain])

        await beside_each_other(resolve, chains([member.event for member in wrong]))
        await self._append_all(members)

    async def _append_all(self, members: Sequence[Member]) -> None:
        """Append all records. A success or a final error becomes the event's result."""
        wanted: list[Member] = []
        appends: list[Append] = []
        for member in members:
            resolved = member.resolved
            if resolved is not None and resolved.record is not None:
                wanted.append(member)
                appends.append(Append(resolved.record, member.state, resolved.claim))
        for member, error in zip(wanted, await self._journal.append_each(appends), strict=True):
            assert member.resolved is not None
            if error is None:
                member.result = member.resolved
            elif isinstance(error, DuplicateMessage):
                member.resolved = repeated(error.value)
            else:
                member.result = error

    async def _settle(self, member: Member) -> None:
        result = member.result if isinstance(member.result, Exception) else member.resolved
        assert result is not None
        [member.result] = await keep(self._store, [result], member.state)
