"""Events become durable: alone, or many with one commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextvars import copy_context

from .chains import Pace, beside_each_other, chains
from .errors import Claimed, Stale, Unavailable
from .events import Event
from .hooks import Hooks
from .journal import Append, Journal
from .members import Member, Stored, result_of
from .recalling import Recalled, Recaller
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
        self._going_on: set[asyncio.Task[None]] = set()
        """With events that could not be appended as they were."""

    async def begin(self, event: Event, then: Callable[[Stored | Exception], None]) -> None:
        """Store an event: `then` is called once, when it is durable, or with the error that has kept it from that.

        It is called in the event loop, before this returns or later, and must not raise. Raises `Unavailable` where
        there is no room.
        """
        self._room.check()
        self._room.take(1)
        try:
            recalled = await self._recaller.recall(event) if self._recaller.works else None
        except Exception as error:  # noqa: BLE001 - it is told
            self._end(then, error)
            return
        if recalled is None:
            await self._resolve(event, then)
        else:
            await self._append(event, recalled.resolved, recalled.state, then, recalled)

    async def _resolve(self, event: Event, then: Callable[[Stored | Exception], None]) -> None:
        state = self._store.begin(event.received_at)
        try:
            resolved = await self._resolver.resolve(event, state)
        except Exception as error:  # noqa: BLE001 - it is told
            self._end(then, await self._kept(error, state))
        else:
            await self._append(event, resolved, state, then)

    async def _append(
        self,
        event: Event,
        resolved: Resolved,
        state: State,
        then: Callable[[Stored | Exception], None],
        recalled: Recalled | None = None,
    ) -> None:
        if resolved.record is None:
            self._end(then, await self._kept(resolved, state))
            return
        context = copy_context()

        def landed(error: Exception | None) -> None:
            if error is None:
                self._end(then, Stored(resolved.outcome, resolved.session))
                return
            work = self._go_on(event, error, state, then, recalled)
            task = asyncio.get_running_loop().create_task(work, context=context)
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)

        await self._journal.begin(Append(resolved.record, state, resolved.claim), landed)

    async def _go_on(
        self,
        event: Event,
        error: Exception,
        state: State,
        then: Callable[[Stored | Exception], None],
        recalled: Recalled | None,
    ) -> None:
        """With an event that could not be appended."""
        if recalled is not None and isinstance(error, Stale):
            recalled.undo(event)
            await self._resolve(event, then)
        else:
            self._end(then, await self._kept(repeated(error.value) if isinstance(error, Claimed) else error, state))

    def _end(self, then: Callable[[Stored | Exception], None], result: Stored | Exception) -> None:
        self._room.give_back(1)
        then(result)

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
        result = member.result if isinstance(member.result, Exception) else member.resolved
        assert result is not None
        member.result = await self._kept(result, member.state)

    async def _kept(self, result: Resolved | Exception, state: State) -> Stored | Exception:
        """What becomes of an event without a record, or that failed: what it has seen or written is to be durable."""
        try:
            await self._store.commit(state)
        except Exception as error:  # noqa: BLE001 - it is told
            # Others may have seen what a failed event wrote already (its session, say), so that is kept, not undone;
            # where it cannot be kept, the back end tells of it itself.
            return error if isinstance(result, Resolved) or not isinstance(error, Unavailable) else result
        return Stored(result.outcome, result.session) if isinstance(result, Resolved) else result


def _is_done(member: Member) -> bool:
    return member.first is not None or isinstance(member.result, Stored)
