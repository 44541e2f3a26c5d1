"""Sales for marketers: the attribution plugin makes them from the journal, one at a time, and events go first."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ingestd.api.errors import NotFound
from ingestd.pipeline.demand import Demand

from .journeys import SearchQueue

__all__ = ["Sales"]

_AGE = 60.0  # seconds for which an answer is reused
_MOST_ANSWERS = 16
_STEP = 0.001  # seconds of work on the event loop without a pause
_REST = 2.0  # times as long as a step: the part of the event loop that single events find free
_PARAMETERS = ("days", "since", "until", "compare", "tenant")

Pause = Callable[[], Awaitable[None]]


@runtime_checkable
class _Maker(Protocol):
    async def make_sales(self, given: Mapping[str, str], pause: Pause) -> Mapping[str, Any]: ...


class Sales:
    """`plugin` returns the loaded plugin of a name. `demands` tell of events in progress, of each partition."""

    def __init__(
        self,
        plugin: Callable[[str], object | None],
        demands: Sequence[Demand],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plugin = plugin
        self._demands = demands
        self._clock = clock
        self._queue = SearchQueue()
        self._made: dict[tuple[str, ...], tuple[float, bytes]] = {}

    async def render(self, given: Mapping[str, str]) -> bytes:
        """The sales as JSON. Raises `BadRequest`, `NotFound`, `Unavailable`."""
        maker = self._plugin("attribution")
        if not isinstance(maker, _Maker):
            raise NotFound("The plugin attribution is off, so there are no sales.")
        key = tuple(given.get(name, "") for name in _PARAMETERS)
        if (known := self._fresh(key)) is not None:
            return known
        async with self._queue.wait():
            if (known := self._fresh(key)) is None:  # a request before this one may have asked for the same
                at = self._clock()
                known = msgspec.json.encode(await maker.make_sales(given, _Pace(self._demands).give_way))
                if len(self._made) >= _MOST_ANSWERS:
                    del self._made[next(iter(self._made))]
                self._made[key] = (at, known)
            return known

    def forget(self) -> None:
        """Drop all answers."""
        self._made.clear()

    def _fresh(self, key: tuple[str, ...]) -> bytes | None:
        at, body = self._made.get(key, (float("-inf"), b""))
        return body if self._clock() - at < _AGE else None


class _Pace:
    """Work on the event loop in short steps. Behind each, other work has its turn, and single events a rest."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._demands = demands
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        took = time.perf_counter() - self._since
        if took > _STEP:
            beside_singles = any(demand.is_beside_singles() for demand in self._demands)
            await self._demands[0].give_way(_REST * took if beside_singles else took)
            self._since = time.perf_counter()
