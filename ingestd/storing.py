"""Events become durable: alone, or many with one commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .chains import Pace, beside_each_other, chains
from .errors import Claimed, Unavailable
from .events import Event, Session
from .hooks import Hooks
from .journal import Append, Journal
from .outcomes import Outcome
from .resolving import Resolved, Resolver, repeated
from .room import Room
from .store import State, Store

__all__ = ["Stored", "Storing"]


class Stored(NamedTuple):
    """What became of an event that is answered 200."""

    outcome: Outcome
    session: Session


class _Member:
    """An event of a batch: at last it has a result, or a first one whose result is also its own."""

    __slots__ = ("event", "first", "resolved", "result", "state")

    def __init__(self, event: Event, state: State) -> None:
        self.event = event
        self.state = state
        self.resolved: Resolved | None = None
        self.first: _Member | None = None
        """The one before it in the batch with the same message."""
        self.result: Stored | Exception | None = None

    def repeats(self, messages: dict[str, _Member]) -> bool:
        """Whether it is answered as an earlier one of the batch."""
        if self.event.message_id is None:
            return False
        self.first = messages.get(self.event.message_id)
        return self.first is not None

    def claim(self, messages: dict[str, _Member]) -> None:
        """Be the one that later ones of the same message are answered as."""
        if self.event.message_id is not None and self.resolved is not None and self.resolved.record is not None:
            messages[self.event.message_id] = self


class Storing:
    def __init__(self, hooks: Hooks, store: Store, journal: Journal, room: Room) -> None:
        self._resolver = Resolver(hooks, store, journal)
        self._store = store
        self._journal = journal
        self._room = room

    async def store(self, event: Event) -> Stored:
        """Returns when the event is durable. Raises `Refused`, and whatever a plugin raises."""
        self._room.check()
        self._room.take(1)
        state = self._store.begin(event.received_at)
        try:
            return await self._finish(await self._resolver.resolve(event, state), state)
        except Exception:
            await self._keep_state(state)
            raise
        finally:
            self._room.give_back(1)

    async def store_all(self, events: Sequence[Event]) -> list[Stored | Exception]:
        """As if each was stored after the one before it, but with one commit; what that would raise is in its place.

        There is room for them (`Room.turn`). Raises `Unavailable` where none is stored.
        """
        self._room.check()
        members = [_Member(event, self._store.begin(event.received_at)) for event in events]
        messages: dict[str, _Member] = {}
        pace = Pace()

        async def resolve(chain: Sequence[int]) -> None:
            if self._store.distant:
                for stretch in _stretches([members[place] for place in chain]):
                    await self._resolve_stretch(stretch, messages)
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
        await self._append_all([member for member in members if member.resolved is not None])
        await asyncio.gather(*(self._settle(member) for member in members if not _is_done(member)))
        return [_result(member) for member in members]

    async def _look_up(self, member: _Member) -> None:
        """Have its message looked up with those of the others: in its chain it would be one after the other."""
        with contextlib.suppress(Exception):  # which is met again there
            await self._resolver.earlier(member.event, member.state)

    async def _resolve_stretch(self, stretch: Sequence[_Member], messages: dict[str, _Member]) -> None:
        fresh = [member for member in stretch if not member.repeats(messages)]
        resolved = await self._resolver.resolve_together([(member.event, member.state) for member in fresh])
        for member, result in zip(fresh, resolved, strict=True):
            if isinstance(result, Exception):
                member.result = result
            else:
                member.resolved = result
                member.claim(messages)

    async def _append_all(self, members: Sequence[_Member]) -> None:
        """Append what there is to append; where that succeeds, or fails for good, it is the result."""
        wanted: list[_Member] = []
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

    async def _settle(self, member: _Member) -> None:
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


def _stretches(chain: Sequence[_Member]) -> Iterator[list[_Member]]:
    """Those of a chain, together until one must know of another.

    After an identify request the next may have another user, and a message must know what became of its like.
    """
    stretch: list[_Member] = []
    messages: set[str] = set()
    for member in chain:
        message_id = member.event.message_id
        if stretch and (message_id in messages or stretch[-1].event.type == "identify"):
            yield stretch
            stretch = []
            messages.clear()
        stretch.append(member)
        if message_id is not None:
            messages.add(message_id)
    yield stretch


def _is_done(member: _Member) -> bool:
    return member.first is not None or isinstance(member.result, Stored)


def _result(member: _Member) -> Stored | Exception:
    if member.first is not None:
        first = _result(member.first)
        return first if isinstance(first, Exception) else Stored(Outcome.DUPLICATE, first.session)
    assert member.result is not None
    return member.result
