"""How the events of a batch that go one after the other are resolved on a distant store, in as few trips as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestd.api.store import Store

from .members import Member
from .pace import Pace
from .recalling import Recaller
from .resolver import Resolver

__all__ = ["Stretches"]

_MISSES = 2  # events of a chain that could not be recalled, after which it is not tried any more


class Stretches:
    """`messages` are those of the whole batch, by their ids: the members that others are answered as."""

    def __init__(self, resolver: Resolver, recaller: Recaller, store: Store, messages: dict[str, Member]) -> None:
        self._resolver = resolver
        self._recaller = recaller
        self._store = store
        self._messages = messages
        self._missed: set[str] = set()
        """The visitors of those that could not be recalled when they were read."""
        self._pace = Pace()

    async def recall(self, member: Member) -> None:
        """Recall one that was just read: what it is made of is still in the processor's cache.

        Where one before it in its chain could not be recalled, that is taken back by `resolve`.
        """
        visitor = member.event.anonymous_id
        if not self._recaller.works or visitor in self._missed or member.repeats(self._messages):
            return
        if not await self._recall(member):
            self._missed.add(visitor)

    async def resolve(self, chain: Sequence[Member]) -> None:
        """What is recalled takes effect last, when it is appended: so whatever else there is comes before that."""
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
        """Those of a chain that were recalled wrongly."""
        await self._resolve_all(members)

    async def _recall(self, member: Member) -> bool:
        """Whether it is resolved by now, or refused."""
        try:
            recalled = await self._recaller.recall(member.event)
        except Exception as error:  # noqa: BLE001 - it is this event's answer, and no other's
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
    """Those of a chain, together until one must know of another.

    After an identify request the next may have another user, and a message must know what became of its like.
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
