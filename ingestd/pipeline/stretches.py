"""Resolves a chain of a batch's events on a distant store, in as few trips as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestd.api.store import Store

from .members import Member
from .pace import Pace
from .recalling import Recaller
from .resolver import Resolver

__all__ = ["Stretches"]

_MISSES = 2  # events of a chain that memory could not resolve; later ones are not tried


class Stretches:
    """Resolves the chains of one batch. `messages` has the first event of the batch with each message id."""

    def __init__(self, resolver: Resolver, recaller: Recaller, store: Store, messages: dict[str, Member]) -> None:
        self._resolver = resolver
        self._recaller = recaller
        self._store = store
        self._messages = messages
        self._missed: set[str] = set()
        """Visitors with an event that memory could not resolve when it was read."""
        self._pace = Pace()

    async def recall(self, member: Member) -> None:
        """Resolve an event from memory right after it was read, while its objects are in the processor's cache.

        If memory could not resolve an earlier event of its chain, `resolve` undoes this.
        """
        visitor = member.event.anonymous_id
        if not self._recaller.works or visitor in self._missed or member.repeats(self._messages):
            return
        if not await self._recall(member):
            self._missed.add(visitor)

    async def resolve(self, chain: Sequence[Member]) -> None:
        """Resolve a chain. If an event needs the store, so do the events before it that memory has resolved.

        Those take effect only when they are appended, which would be too late for that event.
        """
        done = next((place for place, member in enumerate(chain) if not member.is_recalled), len(chain))
        recalled = [member for member in chain[:done] if member.first is None]
        rest = chain[done:]
        for member in rest:
            member.undo(self._messages)
        misses = 0 if self._recaller.works else _MISSES
        for place, member in enumerate(rest):
            if misses == _MISSES:
                await self._resolve_all([*recalled, *rest[place:]])
                return
            if self._pace.is_over():
                await self._pace.pause()
            if member.repeats(self._messages):
                continue
            if await self._recall(member):
                recalled.append(member)
                continue
            misses += 1
            await self._resolve_all([*recalled, member])
            recalled = []

    async def resolve_anew(self, members: Sequence[Member]) -> None:
        """Resolve events of a chain again, on the store, because memory was wrong."""
        await self._resolve_all(members)

    async def _recall(self, member: Member) -> bool:
        """Resolve an event from memory. Returns whether it has a result or an error."""
        try:
            recalled = await self._recaller.recall(member.event)
        except Exception as error:  # noqa: BLE001 - it is the answer of this event alone
            member.result = error
            member.begin(self._store)
            return True
        if recalled is None:
            return False
        member.be_recalled(recalled)
        member.claim(self._messages)
        return True

    async def _resolve_all(self, members: Sequence[Member]) -> None:
        for member in members:
            member.undo(self._messages)
            member.begin(self._store)
        for stretch in _split(members):
            await self._resolve_stretch(stretch)

    async def _resolve_stretch(self, stretch: Sequence[Member]) -> None:
        fresh = [member for member in stretch if not member.repeats(self._messages)]
        resolved = await self._resolver.resolve_together([(member.event, member.state) for member in fresh])
        for member, result in zip(fresh, resolved, strict=True):
            if isinstance(result, Exception):
                member.result = result
            else:
                member.resolved = result
                member.claim(self._messages)


def _split(chain: Sequence[Member]) -> Iterator[list[Member]]:
    """Split a chain where an event depends on the result of an earlier one.

    After an identify request the next event may have another user. A repeated message needs the result of the first.
    """
    stretch: list[Member] = []
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
