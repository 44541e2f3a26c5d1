"""Events become durable: alone, or many with one commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from .chains import Pace, beside_each_other, chains
from .errors import Claimed, Stale, Unavailable
from .events import Event
from .hooks import Hooks
from .journal import Append, Journal
from .members import Member, Stored, result_of
from .recalling import Recaller
from .resolving import Resolved, Resolver, repeated
from .room import Room
from .store import State, Store
from .stretches import Stretches

__all__ = ["Stored", "Storing"]


class Storing:
    def __init__(self, hooks: Hooks, store: Store, journal: Journal, room: Room) -> None:
        self._resolver = Resolver(hooks, store, journal)
        self._recaller = Recaller(hooks, self._resolver, journal)
        self._store = store
        self._journal = journal
        self._room = room

    async def store(self, event: Event) -> Stored:
        """Returns when the event is durable. Raises `Refused`, and whatever a plugin raises."""
        self._room.check()
        self._room.take(1)
        try:
            if self._recaller.works and (stored := await self._store_recalled(event)) is not None:
                return stored
            state = self._store.begin(event.received_at)
            try:
                return await self._finish(await self._resolver.resolve(event, state), state)
            except Exception:
                await self._keep_state(state)
                raise
        finally:
            self._room.give_back(1)

    async def _store_recalled(self, event: Event) -> Stored | None:
        """None where what is remembered of its visitor is not enough, or no longer true: nothing is done then."""
        recalled = await self._recaller.recall(event)
        if recalled is not None:
            try:
                return await self._finish(recalled.resolved, recalled.state)
            except Stale:
                recalled.undo(event)
        return None

    async def store_all(self, events: Sequence[Event]) -> list[Stored | Exception]:
        """As if each was stored after the one before it, but with one commit; what that would raise is in its place.

        There is room for them (`Room.turn`). Raises `Unavailable` where none is stored.
        """
        self._room.check()
        members = [Member(event, self._store) for event in events]
        messages: dict[str, Member] = {}
        stretches = Stretches(self._resolver, self._recaller, messages)
        pace = Pace()

        async def resolve(chain: Sequence[int]) -> None:
            if self._store.distant:
                await stretches.resolve([members[place] for place in chain])
                return
            for place in chain:
                if pace.is_over():
                    await pace.pause()
                member = members[place]
                if member.repeats(messages):
                    continue
                try:
                    member.resolved = await self._resolver.resolve(member.event, member.state)
                except Exception as error:  # noqa: BLE001 - it is this event's answer, and no other's
                    member.result = error
                else:
                    member.claim(messages)

        if not self._store.distant:
            await beside_each_other(self._look_up, [each for each in members if each.event.message_id is not None])
        await beside_each_other(resolve, chains(events))
        await self._append_all(members)
        if stale := [member for member in members if isinstance(member.result, Stale)]:
            await self._store_anew(stale, stretches)
        await asyncio.gather(*(self._settle(member) for member in members if not _is_done(member)))
        return [result_of(member) for member in members]

    async def _look_up(self, member: Member) -> None:
        """Have its message looked up with those of the others: in its chain it would be one after the other."""
        with contextlib.suppress(Exception):  # which is met again there
            await self._resolver.earlier(member.event, member.state)

    async def _store_anew(self, members: Sequence[Member], stretches: Stretches) -> None:
        """Those that something was remembered wrongly of, or that came behind such a one."""
        for member in members:
            member.result = None
        wrong = [member for member in members if member.recalled is not None]

        async def resolve(chain: Sequence[int]) -> None:
            await stretches.resolve_anew([wrong[place] for place in chain])

        await beside_each_other(resolve, chains([member.event for member in wrong]))
        await self._append_all(members)

    async def _append_all(self, members: Sequence[Member]) -> None:
        """Append what there is to append; where that succeeds, or fails for good, it is the result."""
        wanted: list[Member] = []
        appends: list[Append] = []
        for member in members:
            resolved = member.resolved
            if resolved is not None and resolved.record is not None:
                wanted.append(member)
                appends.append(Append(resolved.record, member.state, resolved.claim))
        for member, error in zip(wanted, await self._journal.append_each(appends), strict=True):
            assert member.resolved is not None
            if isinstance(error, Claimed):
                member.resolved = repeated(error.value)
            else:
                member.result = error or Stored(member.resolved.outcome, member.resolved.session)

    async def _settle(self, member: Member) -> None:
        """Of one without a record, or that failed: what it has seen or written must be durable all the same."""
        if member.result is None:
            assert member.resolved is not None
            try:
                member.result = await self._finish(member.resolved, member.state)
            except Exception as error:  # noqa: BLE001 - as above
                member.result = error
        if isinstance(member.result, Exception):
            await self._keep_state(member.state)

    async def _finish(self, resolved: Resolved, state: State) -> Stored:
        if resolved.record is not None:
            try:
                await self._journal.append([resolved.record], state, claim=resolved.claim)
                return Stored(resolved.outcome, resolved.session)
            except Claimed as claimed:
                resolved = repeated(claimed.value)
        await self._store.commit(state)
        return Stored(resolved.outcome, resolved.session)

    async def _keep_state(self, state: State) -> None:
        # Others may have seen what a failed event wrote already (its session, say), so it is kept,
        # not undone; where that fails too, the back end tells of it itself.
        with contextlib.suppress(Unavailable):
            await self._store.commit(state)


def _is_done(member: Member) -> bool:
    return member.first is not None or isinstance(member.result, Stored)
