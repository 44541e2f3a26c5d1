"""The order of the events of a request: one after the other. While one waits, events that do not concern it continue.

Two events concern each other if they have a common ordering key: the visitor, the message, or the user to be linked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

from ingestd.api.events import Event
from ingestd.scheduling.coroutines import EarlyTask, Work, run_until_wait
from ingestd.scheduling.demand import Steps

__all__ = ["EventOrder", "ordering_keys"]


def ordering_keys(event: Event) -> list[Hashable]:
    """Events with a common key are handled in order: the visitor, the message, the user that an event links."""
    keys: list[Hashable] = [event.anonymous_id] if event.has_visitor else []
    if event.message_id is not None:
        keys.append(("message", event.message_id))
    if (event.type == "identify" or event.links) and event.user_id is not None and event.has_visitor:
        keys.append(("user", event.user_id))
    return keys


Handle = Callable[[int, Event], Work]
"""Handles an event. The number counts the events that are handled, from 0. It must not raise."""


class EventOrder:
    """Handles the events of a request in order. None stands for an event that needs no handling.

    The next event is taken from the iterable when all earlier ones have ended or wait. So an event can be parsed,
    handled and freed while its objects are in the processor's cache.
    """

    __slots__ = ("_ends", "_handle", "_number", "_rest", "_steps", "_tasks")

    def __init__(self, events: Iterable[Event | None], handle: Handle) -> None:
        self._rest = iter(events)
        self._handle = handle
        self._number = 0
        self._ends: dict[Hashable, asyncio.Future[None]] = {}
        """For each ordering key of a waiting event, the future that is done when the latest such event has ended."""
        self._steps = Steps()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Handle the events one after the other until one waits, then the others in tasks."""
        for event in self._rest:
            if event is not None and (rest := run_until_wait(self._work(event))) is not None:
                waiting = self._wait(event, rest)
                del event
                try:
                    self._begin_others()
                finally:
                    await waiting
                break
            del event  # before the next one is made
            if self._steps.is_over():
                await self._steps.pause()
        for task in self._tasks:  # each may add another one
            await task

    def _begin_others(self) -> None:
        """Begin the remaining events, as many as possible in this turn: one trip loads what they all lack."""
        early = EarlyTask()
        for event in self._rest:
            if event is not None and (rest := early.run_until_wait(self._work(event))) is not None:
                early.end(self._wait(event, rest))
                self._tasks.append(early.task)
                early = EarlyTask()
            del event
            if self._steps.is_over():
                self._tasks.append(asyncio.create_task(self._begin_others_later()))
                break

    async def _begin_others_later(self) -> None:
        await self._steps.pause()
        self._begin_others()

    def _work(self, event: Event) -> Work:
        number = self._number
        self._number += 1
        return (self._handle_after_others if self._ends else self._handle)(number, event)

    async def _handle_after_others(self, number: int, event: Event) -> None:
        for end in {self._ends[key] for key in ordering_keys(event) if key in self._ends}:
            await asyncio.shield(end)
        await self._handle(number, event)

    def _wait(self, event: Event, rest: Awaitable[None]) -> Work:
        """Let later events with a common ordering key wait for the end of this one. Returns the rest of its work."""
        keys, end = ordering_keys(event), asyncio.get_running_loop().create_future()
        self._ends.update(dict.fromkeys(keys, end))
        return self._end(rest, keys, end)

    async def _end(self, rest: Awaitable[None], keys: Sequence[Hashable], end: asyncio.Future[None]) -> None:
        try:
            await rest
        finally:
            for key in keys:
                if self._ends[key] is end:
                    del self._ends[key]
            end.set_result(None)
