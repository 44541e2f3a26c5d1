"""Sales for marketers: the attribution plugin makes them from the journal, one at a time, and events go first."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from ingestd.api.errors import NotFound
from ingestd.scheduling.demand import Demand
from ingestd.support.pace import Pace

from .disclosure import Disclosure, Names, shortened
from .journeys import SearchQueue

__all__ = ["Sales"]

_AGE = 60.0  # seconds for which an answer is reused
_MOST_ANSWERS = 8
_STEP = 0.0005  # seconds of work on the event loop without a pause
_REST = 3.0  # times as long as a step: the part of the event loop that single events find free
_PARAMETERS = ("days", "since", "until", "compare", "tenant")
_COLUMNS = ("channel", "source", "medium", "name")
_LISTED = 100  # orders of a row
_LATEST = 10  # orders without a period

Pause = Callable[[], Awaitable[None]]


@runtime_checkable
class _Maker(Protocol):
    async def make_sales(self, given: Mapping[str, str], pause: Pause) -> dict[str, Any]: ...

    async def latest_orders(self, count: int, pause: Pause) -> list[dict[str, Any]]: ...


class _MadeSales(NamedTuple):
    at: float
    body: bytes
    csv: bytes
    """The rows as the command prints them."""
    orders: Sequence[Mapping[str, Any]]
    """The newest orders of the period."""


class Sales:
    """`plugin` returns the loaded plugin of a name. `demands` tell of events in progress, of each partition.

    `disclosure` returns what the page may show at present.
    """

    def __init__(
        self,
        plugin: Callable[[str], object | None],
        demands: Sequence[Demand],
        *,
        disclosure: Callable[[], Disclosure],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plugin = plugin
        self._demands = demands
        self._disclosure = disclosure
        self._clock = clock
        self._reports, self._lists = SearchQueue(), SearchQueue()
        self._made: dict[tuple[str, ...], _MadeSales] = {}

    async def render(self, given: Mapping[str, str]) -> bytes:
        """The sales of a period as JSON. Raises `BadRequest`, `NotFound`, `Unavailable`."""
        return (await self._answer(given)).body

    async def render_csv(self, given: Mapping[str, str]) -> bytes:
        """The rows of a period as comma-separated values. Raises the same."""
        return (await self._answer(given)).csv

    async def render_orders(self, given: Mapping[str, str]) -> bytes:
        """The newest orders of a row of a period, or without a period the last ones, as JSON. Raises the same."""
        if any(given.get(name) for name in ("days", "since")):
            orders = [
                (order, share)
                for order in (await self._answer(given)).orders
                if (share := _share(order, given)) and given.get("currency") in {None, order["currency"] or ""}
            ]
        else:
            async with self._lists.wait():
                latest = await self._maker().latest_orders(_LATEST, _SalesPace(self._demands).give_way)
            orders = [(order, 1.0) for order in latest]
        names = Names([], self._disclosure())
        body = {
            "hidden": names.hide,
            "leftOut": max(0, len(orders) - _LISTED),
            "orders": [self._order(order, share, names) for order, share in orders[:_LISTED]],
        }
        return msgspec.json.encode(body)

    def forget(self) -> None:
        """Drop all answers: their orders have ids."""
        self._made = {}

    def _maker(self) -> _Maker:
        maker = self._plugin("attribution")  # no hook: one plugin alone can promise these figures
        if not isinstance(maker, _Maker):
            raise NotFound("The plugin attribution is off, so there are no sales.")
        return maker

    async def _answer(self, given: Mapping[str, str]) -> _MadeSales:
        maker, key = self._maker(), tuple(given.get(name, "") for name in _PARAMETERS)
        known = self._fresh(key)
        if known is None:
            async with self._reports.wait():
                known = self._fresh(key)  # a request before this one may have asked for the same
                if known is None:
                    made = self._made
                    known = await self._make(maker, given)
                    if made is self._made:  # else a person was forgotten meanwhile
                        self._made = self._kept() | {key: known}
        return known

    async def _make(self, maker: _Maker, given: Mapping[str, str]) -> _MadeSales:
        at = self._clock()
        made = await maker.make_sales(given, _SalesPace(self._demands).give_way)
        csv, orders = made.pop("csv").encode(), made.pop("orders")
        return _MadeSales(at, msgspec.json.encode(made), csv, orders)

    def _kept(self) -> dict[tuple[str, ...], _MadeSales]:
        """The fresh answers that stay beside a new one."""
        fresh = [(key, each) for key, each in self._made.items() if self._clock() - each.at < _AGE]
        return dict(fresh[1 - _MOST_ANSWERS :])

    def _fresh(self, key: tuple[str, ...]) -> _MadeSales | None:
        known = self._made.get(key)
        return known if known is not None and self._clock() - known.at < _AGE else None

    def _order(self, order: Mapping[str, Any], share: float, names: Names) -> dict[str, Any]:
        """`journey` leads to the journey of the order. Where ids are hidden, this is the id of its event."""
        may_show = self._disclosure().level != "none"
        return {
            **{name: order[name] for name in ("at", "currency", "revenue", "reversed", "net")},
            "tenant": shortened(order["tenant"]),
            "order": names.name("order", order["order"]) if may_show else None,
            "journey": (order["event"] if names.hide else order["order"] or order["event"]) if may_show else None,
            "share": round(share, 4),
            "campaigns": [[text and shortened(text) for text in fields] for fields, _ in order["shares"][:3]],
        }


def _share(order: Mapping[str, Any], given: Mapping[str, str]) -> float:
    """The share of an order that campaigns with these columns have. Columns that are not given may have any text.

    Case is as in reports: `straße` and `STRASSE` are two rows.
    """
    wanted = [(place, given[name].lower()) for place, name in enumerate(_COLUMNS) if name in given]
    found: float = sum(
        weight
        for fields, weight in order["shares"]
        if all((fields[place] or "").lower() == text for place, text in wanted)
    )
    return found


class _SalesPace(Pace):
    """Short steps. Behind each, other work has its turn, and single events a rest."""

    __slots__ = ("_demands",)

    def __init__(self, demands: Sequence[Demand]) -> None:
        super().__init__(_STEP)
        self._demands = demands

    async def pause(self) -> None:
        took = time.perf_counter() - self._since
        beside_singles = any(demand.is_beside_singles() for demand in self._demands)
        await self._demands[0].give_way(_REST * took if beside_singles else took)
        self._since = time.perf_counter()
