"""The order of a batch's events: events with a common ordering key run one after the other, others concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ingestd.api.events import Event

__all__ = ["UnderWay", "beside_each_other", "chains", "ties"]

_T = TypeVar("_T")


def ties(event: Event) -> list[Hashable]:
    """The ordering keys of an event: its visitor, its message, the user that it links."""
    tied: list[Hashable] = [event.anonymous_id] if event.has_visitor else []
    if event.message_id is not None:
        tied.append(("message", event.message_id))
    if event.type == "identify" and event.user_id is not None and event.has_visitor:
        tied.append(("user", event.user_id))
    return tied


class UnderWay:
    """The events that are being resolved. A later event with a common ordering key waits for them."""

    def __init__(self) -> None:
        self._alone: tuple[int, Sequence[Hashable]] | None = None
        """The only event with ordering keys, as nearly always; it is not in `_last`."""
        self._last: dict[Hashable, int] = {}
        """The latest event with each ordering key."""
        self._awaited: dict[int, asyncio.Future[None]] = {}

    def begin(self, place: int, tied: Sequence[Hashable]) -> list[asyncio.Future[None]]:
        """Add an event. Returns the futures to wait for: they are done when the earlier events have ended."""
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
    """Group the events, by index, so that no two groups have a common ordering key; in the order of first events."""
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
    """Do the work for each item, started in order. While one item waits, the others continue.

    `work` handles the items of its iterator one after the other, and must not raise. While it waits, it is called again
    with the remaining items. Most work finds its data in memory, and a task for each item would cost more than that.
    """
    relay = _Relay(work, all)
    await relay.go_on()
    for task in relay.tasks:  # each may have added another one
        await task


class _Relay(Generic[_T]):
    """A class, because a recursive closure would be a cycle of references that keeps the items in memory."""

    def __init__(self, work: Callable[[Iterator[_T]], Awaitable[None]], all: Iterable[_T]) -> None:
        self._work = work
        self._rest = iter(all)
        self._all_begun = False
        self.tasks: list[asyncio.Task[None]] = []

    async def go_on(self) -> None:
        if not self._all_begun:
            self.tasks.append(asyncio.create_task(self.go_on()))  # starts once this one waits
            await self._work(self._rest)
            self._all_begun = True
