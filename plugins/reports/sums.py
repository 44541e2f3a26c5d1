"""Adds up orders, sessions and costs: the rows of each period of a report, by each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any, TypeVar

from ..attribution.amounts import EXACT
from ..attribution.campaigns import Campaign
from ..attribution.report import Row, divide, ranked
from .columns import Columns, Products, Shares
from .reading import Customer

__all__ = ["Order", "Rest", "RowKey", "Spent", "Sums", "Visits", "add_spent", "rested"]

Rest = Callable[[], None]
"""Lets other threads run, if the work has taken long enough."""
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=tuple[Any, ...])

RowKey = tuple[int, Campaign, str | None]
"""The number of a period, a row, and a currency."""
Visits = dict[tuple[int, Campaign], tuple[int, set[str]]]
"""The number of sessions and their visitors, by period and row."""
Spent = tuple[Decimal, int, int]
"""Cost, clicks and impressions."""
_Counts = Counter[RowKey]
_Amounts = Mapping[RowKey, Sequence[Decimal]]
"""Orders, revenue, reversals, first orders and other orders."""
_ZERO, _ALL = Decimal(0), Decimal(1)
_NONE = (_ZERO,) * 5


@dataclass(slots=True)
class Order:
    order_id: str | None
    event_id: str
    number: int
    """The number of its period."""
    shares: Sequence[Shares]
    """The shares of campaigns by each model."""
    assisted: Sequence[Campaign]
    currency: str | None
    revenue: Decimal
    customer: Customer
    products: Products
    """The shares of its products, if a row is one."""
    reversed: Decimal = _ZERO
    is_superseded: bool = False


class Sums:
    """`earlier` are the customers of orders before the report. `visits` is None if no sessions are counted."""

    def __init__(
        self,
        columns: Columns,
        orders: Sequence[Order],
        earlier: Iterable[Customer],
        visits: Visits | None,
        costs: Mapping[RowKey, Spent],
        *,
        models: int,
        rest: Rest,
    ) -> None:
        self._columns, self._rest = columns, rest
        self._has_visits, self._visits = visits is not None, visits or {}
        self._costs = costs
        is_new = _first_orders([*earlier, *(order.customer for order in orders)], rest)
        self._amounts: list[_Amounts] = [
            _amounts(columns, rested(orders, rest), index, is_new) for index in range(models)
        ]
        self._assisted = _Counts((order.number, row, order.currency) for order in orders for row in order.assisted)
        if not columns.keep_case:
            self._merge_spellings()
        currencies = Counter(order.currency for order in orders) or Counter(key[2] for key in costs)
        self._main = min(currencies, key=lambda each: (-currencies[each], each or ""), default=None)
        """The currency of most orders, or else of most costs, whose rows have the sessions."""

    def _merge_spellings(self) -> None:
        spelling = _Spelling(self._rest)
        for (_, campaign, _), sums in self._amounts[0].items():
            spelling.count(campaign, sums[0], 0)
        for (_, campaign), (sessions, _) in self._visits.items():
            spelling.count(campaign, _ZERO, sessions)
        for _, campaign, _ in chain(self._assisted, self._costs, *self._amounts[1:]):
            spelling.count(campaign, _ZERO, 0)
        self._amounts = [spelling.merged(each, _added) for each in self._amounts]
        self._assisted = _Counts(spelling.merged(self._assisted, int.__add__))
        self._visits = spelling.merged(self._visits, lambda one, other: (one[0] + other[0], one[1] | other[1]))
        self._costs = spelling.merged(self._costs, add_spent)

    def ranked(self, *, until: int | None) -> Sequence[Mapping[int, Sequence[Row]]]:
        """The rows of each period, by each model.

        With `until`, each row of an earlier period is in the next period too, as far as the period of this number.
        """
        keys: dict[RowKey, None] = dict.fromkeys(chain(self._assisted, self._costs, *self._amounts))
        keys |= dict.fromkeys((number, campaign, self._main) for number, campaign in self._visits)
        if until is not None:
            last = max([until, *(each[0] for each in keys)])
            keys |= dict.fromkeys((each[0] + 1, each[1], each[2]) for each in [*keys] if each[0] < last)
        return [self._ranked(keys, each) for each in self._amounts]

    def _ranked(self, keys: Iterable[RowKey], amounts: _Amounts) -> Mapping[int, Sequence[Row]]:
        """The rows of each period. Sessions have no currency, and stand in the rows of the main one."""
        converted: dict[tuple[int, Campaign], Decimal] = {}
        for (number, campaign, _), sums in amounts.items():
            converted[number, campaign] = converted.get((number, campaign), _ZERO) + sums[0]
        rows: dict[int, list[Row]] = {}
        for key in rested(keys, self._rest):
            number, campaign, currency = key
            count, revenue, reversed_, new, returning = amounts.get(key, _NONE)
            row = Row(campaign, currency, count, revenue, reversed_, revenue - reversed_, new=new, returning=returning)
            if self._columns.are_touchpoints:
                row = row._replace(assisted=self._assisted.get(key, 0))
            if self._has_visits and currency == self._main:
                sessions, visitors = self._visits.get((number, campaign), (0, set()))
                all_orders = converted.get((number, campaign), _ZERO)
                row = row._replace(sessions=sessions, visitors=len(visitors), converted=all_orders)
            if key in self._costs:
                cost, clicks, impressions = self._costs[key]
                row = row._replace(cost=cost, clicks=clicks, impressions=impressions)
            rows.setdefault(number, []).append(row)
        return {number: ranked(rested(some, self._rest)) for number, some in rows.items()}


class _Spelling:
    """The spelling of each text in a column of rows: that of most orders, else of most sessions, else the first.

    So rows that differ only in case become one.
    """

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._uses: dict[tuple[int, str], Counter[str]] = {}
        self._sessions: Counter[tuple[int, str]] = Counter()
        self._known: dict[Campaign, Campaign] = {}

    def count(self, campaign: Campaign, orders: Decimal, sessions: int) -> None:
        """Count the uses of the texts of a row, before any call of `merged`."""
        self._rest()
        for column, text in enumerate(campaign.fields):
            if text is not None:
                self._uses.setdefault((column, text.lower()), Counter())[text] += orders  # type: ignore[assignment]
                self._sessions[column, text] += sessions

    def merged(self, values: Mapping[_Key, _Item], add: Callable[[_Item, _Item], _Item]) -> dict[_Key, _Item]:
        """The values by keys with these spellings. The second member of each key is a campaign."""
        found: dict[_Key, _Item] = {}
        for key, value in values.items():
            self._rest()
            written: Any = (key[0], self._written(key[1]), *key[2:])
            found[written] = add(found[written], value) if written in found else value
        return found

    def _written(self, campaign: Campaign) -> Campaign:
        known = self._known.get(campaign)
        if known is None:
            fields = tuple(text and self._best(column, text) for column, text in enumerate(campaign.fields))
            known = self._known[campaign] = Campaign(campaign.kind, fields)
        return known

    def _best(self, column: int, text: str) -> str:
        uses = self._uses.get((column, text.lower()), {text: 0})
        return min(uses, key=lambda each: (-uses[each], -self._sessions[column, each], each))


def _amounts(
    columns: Columns, orders: Iterable[Order], index: int, is_new: Mapping[str, bool | None]
) -> dict[RowKey, list[Decimal]]:
    """The amounts of each row, by the model of this index."""
    found: dict[RowKey, list[Decimal]] = {}
    for order in orders:
        shares = columns.of_products(order.shares[index], order.products)
        weights = [weight for _, weight in shares]
        first = is_new[order.customer.id]
        counts = divide(_ALL, weights)
        none = [_ZERO] * len(weights)
        parts_of = (
            counts, divide(order.revenue, weights), divide(order.reversed, weights) if order.reversed else none,
            counts if first else none, counts if first is False else none,
        )  # fmt: skip
        for (campaign, _), *parts in zip(shares, *parts_of, strict=True):
            key = order.number, campaign, order.currency
            known = found.get(key)
            found[key] = parts if known is None else _added(known, parts)
    return found


def _first_orders(customers: Iterable[Customer], rest: Rest) -> Mapping[str, bool | None]:
    """Whether an attribution is of the first order of its customer. None if the customer has been forgotten."""
    known: set[str] = set()
    found = {}
    for customer in rested(sorted(customers, key=lambda each: (each.at, each.id)), rest):
        names = customer.names
        found[customer.id] = known.isdisjoint(names) if names else None
        known.update(names)
    return found


def rested(items: Iterable[_Item], rest: Rest) -> Iterator[_Item]:
    """The items, with a rest before each if it is time."""
    for each in items:
        rest()
        yield each


def _added(one: Sequence[Decimal], other: Sequence[Decimal]) -> list[Decimal]:
    return [a + b for a, b in zip(one, other, strict=True)]


def add_spent(one: Spent, other: Spent) -> Spent:
    return EXACT.add(one[0], other[0]), one[1] + other[1], one[2] + other[2]
