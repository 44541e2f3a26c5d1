"""Which events of a batch go one after the other, and how the others go beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ingestd.api.events import Event

__all__ = ["UnderWay", "beside_each_other", "chains", "ties"]

_T = TypeVar("_T")


def ties(event: Event) -> list[Hashable]:
    """What events have in common that must go one after the other: visitor, message, user that is linked."""
    tied: list[Hashable] = [event.anonymous_id] if event.has_visitor else []
    if event.message_id is not None:
        tied.append(("message", event.message_id))
    if event.type == "identify" and event.user_id is not None and event.has_visitor:
        tied.append(("user", event.user_id))
    return tied


class UnderWay:
    """The events that are being resolved; those that come later and have a tie to one of them wait for it."""

    def __init__(self) -> None:
        self._alone: tuple[int, Sequence[Hashable]] | None = None
        """The only one with ties, as nearly always; it is not among the others."""
        self._last: dict[Hashable, int] = {}
        """With each tie, the last one to come."""
        self._awaited: dict[int, asyncio.Future[None]] = {}

    def begin(self, place: int, tied: Sequence[Hashable]) -> list[asyncio.Future[None]]:
        """Returns what is to be waited for, which is done when the others have ended."""
        if not tied:
            return []
        if self._alone is None and not self._last:
            self._alone = place, tied
            return []
        if self._alone is not None:
            alone, self._alone = self._alone, None
            self._tie(*alone)
        before = [self._end_of(self._last[tie]) for tie in tied if tie in self._last]
        self._tie(place, tied)
        return before

    def _tie(self, place: int, tied: Sequence[Hashable]) -> None:
        for tie in tied:
            self._last[tie] = place

    def _end_of(self, place: int) -> asyncio.Future[None]:
        if place not in self._awaited:
            self._awaited[place] = asyncio.get_running_loop().create_future()
        return self._awaited[place]

    def end(self, place: int, tied: Sequence[Hashable]) -> None:
        if not tied:
            return
        if self._alone is not None:
            self._alone = None
            return
        for tie in tied:
            if self._last[tie] == place:
                del self._last[tie]
        if place in self._awaited:
            self._awaited.pop(place).set_result(None)


def chains(events: Sequence[Event]) -> list[list[int]]:
    """The events, by their places, in groups that have no tie to each other, in the order of their first events."""
    leaders = [*range(len(events))]
    first: dict[Hashable, int] = {}
    for place, event in enumerate(events):
        for tie in ties(event):
            earlier = first.setdefault(tie, place)
            if earlier != place:
                _join(leaders, earlier, place)
    groups: dict[int, list[int]] = {}
    for place in range(len(events)):
        leader = _leader(leaders, place)
        if leader == place:
            groups[place] = [place]
        else:
            groups[leader].append(place)
    return [*groups.values()]


def _leader(leaders: list[int], place: int) -> int:
    while leaders[place] != place:
        leaders[place] = leaders[leaders[place]]
        place = leaders[place]
    return place


def _join(leaders: list[int], one: int, other: int) -> None:
    one, other = _leader(leaders, one), _leader(leaders, other)
    leaders[max(one, other)] = min(one, other)


async def beside_each_other(work: Callable[[Iterator[_T]], Awaitable[None]], all: Iterable[_T]) -> None:
    """Do what there is to do for each, beginning in order; while one has to wait, the others go on.

    `work` does it for one after the other of those it is given, and must not raise. It is called again while it waits,
    with what is left then. Most work finds what it needs in memory, and a task for each would cost more than that.
    """
    relay = _Relay(work, all)
    await relay.go_on()
    for task in relay.tasks:  # each may have added another one
        await task


class _Relay(Generic[_T]):
    """A class, because a function that begins itself would be a cycle of references, with all that it works on."""

    def __init__(self, work: Callable[[Iterator[_T]], Awaitable[None]], all: Iterable[_T]) -> None:
        self._work = work
        self._rest = iter(all)
        self._all_begun = False
        self.tasks: list[asyncio.Task[None]] = []

    async def go_on(self) -> None:
        if not self._all_begun:
            self.tasks.append(asyncio.create_task(self.go_on()))  # which begins once this one waits
            await self._work(self._rest)
            self._all_begun = True
