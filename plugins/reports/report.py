"""Adds up the records of a journal: orders, revenue, reversals, customers and sessions, by the columns of a report.

This is pure: records in, rows out. The memory grows with the sessions, orders and customers of the records, and not
with their events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgspec

from ingestd.api.events import Record

from ..attribution.amounts import EXACT, currency_code, decimal
from ..attribution.campaigns import DIRECT, OTHERS, Campaign, add_weights
from ..attribution.models import Model
from ..attribution.record_size import texts_of
from ..attribution.report import Row, amount_of, divide, is_too_large, ranked
from ..attribution.touches import Touch
from .costs import Cost
from .reading import Customer, page_path, products, read_customer, read_visit
from .spelling import Spelling

__all__ = ["UNKNOWN", "Line", "Numbers", "Report", "Sold", "columns_of"]

UNKNOWN = "(unknown)"
"""The page or the products of an event that the journal no longer has."""

_CHANNEL_OF_DIRECT = "Direct"
_COST_COLUMNS = {"channel", "source", "medium", "name"}
_MOST_STEPS, _LAST_STEPS = 10, 8  # of a path: a visitor may have hundreds of touchpoints

Numbers = Callable[[int], int | None]
"""The number of the period of an instant, None for no period of the report."""
_Shares = tuple[tuple[Campaign, Decimal], ...]
_Products = tuple[tuple[str | None, Decimal], ...]
_Value = TypeVar("_Value")
_Key = tuple[int, Campaign, str | None]
"""The number of a period, a row, and a currency."""
_VisitKey = tuple[int, Campaign]
_Spent = tuple[Decimal, int, int]
"""Cost, clicks and impressions."""
_Counts = Counter[_Key]
_ZERO, _ALL = Decimal(0), Decimal(1)
_NONE = (_ZERO,) * 5


def columns_of(by: Sequence[str]) -> tuple[str, ...]:
    """The columns for choices of `--by`. `campaign` alone is all that names one, and beside others its name.

    `landing` is the path of a touchpoint's page. `model` is no column.
    """
    chosen = [each for each in by if each != "model"] or ["channel"]
    if chosen == ["campaign"]:
        return "source", "medium", "name"
    return tuple(dict.fromkeys("name" if each == "campaign" else each for each in chosen))


class Line(NamedTuple):
    """A row of a period."""

    number: int
    """The number of the period."""
    row: Row
    before: Row | None = None
    """The same row of the period before."""
    by_model: Sequence[Row] = ()
    """The same row by each further model."""


class _Rest(NamedTuple):
    """What rows have beside the amounts by a model."""

    assisted: Mapping[_Key, int]
    visits: Mapping[_VisitKey, tuple[int, set[str]]]
    """The number of sessions, and their visitors."""
    costs: Mapping[_Key, _Spent]
    main: str | None
    """The currency of most orders, whose rows have the sessions."""


class Sold(NamedTuple):
    """A single order."""

    id: str
    """The id of its attribution."""
    number: int
    """The number of its period."""
    currency: str | None
    revenue: Decimal
    reversed: Decimal
    shares: Sequence[tuple[Campaign, Decimal]]
    """The campaigns by the first model, with their shares."""


class _Session:
    __slots__ = ("campaign", "start", "touched", "visitor")

    def __init__(self, start: int, visitor: str, campaign: Campaign) -> None:
        self.start = start
        self.visitor = visitor
        self.campaign = campaign
        self.touched: tuple[int, int] | None = None
        """The sort key of its first touchpoint."""


@dataclass(slots=True)
class _Order:
    number: int
    shares: Sequence[_Shares]
    """The shares of campaigns by each model."""
    assisted: Sequence[Campaign]
    currency: str | None
    revenue: Decimal
    customer: Customer
    products: _Products
    """The shares of its products, if a row is one."""
    reversed: Decimal = _ZERO
    is_superseded: bool = False


class Report:
    """Adds up the records of one tenant, or of all.

    An order counts in the period in which it was received, with all its reversals. A session counts in the period of
    its first event, and belongs to its first touchpoint. The order of the records does not matter, except that a
    reversal comes after its attribution, and an attribution after its order.
    """

    def __init__(
        self,
        columns: Sequence[str],
        models: Sequence[Model | None] = (None,),
        *,
        numbers: Numbers = lambda at: 0,
        first: int = 0,
        last: int = 0,
        read_touch: Callable[[Record], Touch | None] | None = None,
        is_visitor: Callable[[str], bool] = bool,
        channel: Callable[[Mapping[str, Any]], str | None] = lambda texts: texts.get("channel"),
        tenant: str | None = None,
        since: int = 0,
        until: int | None = None,
        keep_case: bool = False,
        paths: bool = False,
    ) -> None:
        """`columns` are those of `columns_of`. None among `models` is the model of each attribution.
        The rows are ranked by the first one.

        `first` is the number of the first period that is shown, and `last` that of the present or of the end.
        `read_touch` returns the touchpoint that a record is. Without it, no sessions are counted. Events received
        before `since` count for nothing, and sessions that begin at `until` or later. With `paths`, a row is a sequence
        of touchpoints before orders.
        """
        self._columns = tuple(columns)
        self._fields = tuple(each for each in columns if each != "product")
        self._product = columns.index("product") if "product" in columns else None
        self._models = models
        self._numbers, self._first, self._last = numbers, first, last
        self._read_touch, self._is_visitor, self._channel = read_touch, is_visitor, channel
        self._tenant, self._since, self._until = tenant, since, until
        self._keep_case, self._paths = keep_case, paths
        self.has_sessions = read_touch is not None and self._product is None and not paths
        self.takes_costs = not paths and {*columns} <= _COST_COLUMNS
        """Whether costs of campaigns belong to single rows."""
        self.tenants: set[str] = set()
        """The tenants of orders and sessions."""
        self._costs: dict[_Key, _Spent] = {}
        self._reads_all = self._product is not None or "landing" in columns
        """Whether events before the period matter too."""
        self.not_counted = 0
        """Orders with an amount that is too large to count."""
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._visitors: dict[str, str] = {}
        self._orders: dict[str, _Order] = {}
        """The orders by the id of their attribution."""
        self._customers: dict[str, Customer] = {}
        """The customers of orders outside of the report, by the same id."""
        self._reversals: set[str] = set()
        self._pages: dict[str, str | None] = {}
        self._products: dict[str, _Products] = {}
        self._equal: dict[Any, Any] = {}

    def add(self, record: Record) -> None:
        """Add a record of the journal. A repeated record counts once."""
        if record.type in {"event", "identify"}:
            self._add_event(record)
        elif record.type == "attribution":
            number = self._numbers(record.received_at())
            if number is not None:
                self.add_derived(record.decode(), number)
            else:
                customer = read_customer(record.body)
                if self._tenant in {None, customer.tenant}:
                    self._customers.setdefault(customer.id, customer)
        elif record.type == "attribution_reversal":
            self.add_derived(record.decode())

    def add_derived(self, body: Mapping[str, Any], number: int = 0) -> None:
        """Add an attribution of the period of this number, or a reversal.

        A reversal counts in the rows of its attribution, and only if the attribution was added before. A superseded
        order does not count.
        """
        if self._tenant not in {None, body["tenant"]}:
            return
        if body["type"] == "attribution":
            self.tenants.add(body["tenant"])
            if body["id"] not in self._orders:
                self._orders[body["id"]] = self._order(body, number)
        elif body["id"] not in self._reversals:
            self._reversals.add(body["id"])
            order = self._orders.get(body["attributionId"])
            if body["reason"] == "superseded":
                self._customers.pop(body["attributionId"], None)
                if order is not None:
                    order.is_superseded = True
            elif order is not None:
                with localcontext(EXACT):
                    order.reversed += amount_of(body["value"]) or _ZERO

    def add_cost(self, cost: Cost, number: int) -> None:
        """Add the cost of a campaign in the period of this number. Call this for each once, if `takes_costs`."""
        texts = {"source": cost.source, "medium": cost.medium, "name": cost.campaign}
        key = number, self._campaign("", texts), cost.currency
        spent = cost.cost, cost.clicks or 0, cost.impressions or 0
        self._costs[key] = _spent(self._costs[key], spent) if key in self._costs else spent

    # Events

    def _add_event(self, record: Record) -> None:
        if not self._reads_all and (record.at < self._since or not self.has_sessions):
            return
        found = read_visit(record)
        if found is None or self._tenant not in {None, found[1].tenant}:
            return
        at, visit = found
        if self._product is not None and visit.key == "Order Completed" and visit.anonymousId is not None:
            self._products[visit.id] = self._shared(products(record))
        touch = None
        if self._read_touch is not None and (self.has_sessions or "landing" in self._fields):
            touch = self._read_touch(record)
        if touch is not None and "landing" in self._fields:
            self._pages[visit.id] = self._shared(page_path(record))
        if not self.has_sessions or at < self._since or visit.sessionId is None or visit.anonymousId is None:
            return
        if self._is_visitor(visit.anonymousId) and not visit.is_of_earlier_session:
            self._add_visit(at, visit.tenant, visit.sessionId, visit.anonymousId, touch)

    def _add_visit(self, at: int, tenant: str, session_id: str, visitor: str, touch: Touch | None) -> None:
        session = self._sessions.get((tenant, session_id))
        if session is None or at < session.start:
            visitor = self._visitors.setdefault(f"{tenant}\0{visitor}", f"{tenant}\0{visitor}")
            if session is None:
                if self._until is not None and at >= self._until:
                    return
                self.tenants.add(tenant)
                session = self._sessions[tenant, session_id] = _Session(at, visitor, self._direct())
            session.start, session.visitor = at, visitor
        if touch is not None and (session.touched is None or touch.order < session.touched):
            session.touched = touch.order
            session.campaign = self._campaign(touch.event_id, _texts(touch))

    # Orders

    def _order(self, body: Mapping[str, Any], number: int) -> _Order:
        touches = {event_id: self._campaign(event_id, texts) for event_id, texts in texts_of(body)}
        shares = []
        for model in self._models:
            credits_ = body["credits"][model or body["model"]]
            if self._paths:
                found: _Shares = ((self._path([*touches.values()], body.get("leftOut", 0)), _ALL),)
            else:
                weights = add_weights(((touches[each["eventId"]], each["weight"]) for each in credits_), self._direct())
                found = tuple((campaign, sum(map(decimal, parts), _ZERO)) for campaign, parts in weights.items())
            shares.append(self._shared(found))  # many orders have equal shares
        assisted: Sequence[Campaign] = ()
        if self._product is None and not self._paths:
            others = {self._same(each): each for each in touches.values()}
            for campaign, _ in shares[0]:
                others.pop(self._same(campaign), None)
            assisted = self._shared(tuple(others.values()))
        self.not_counted += is_too_large(body)
        customer = Customer(
            body["id"], body["tenant"], body["decidedAt"], body["anonymousId"], body["userId"], body.get("orderAt")
        )
        currency = currency_code(body["value"]["currency"])
        revenue = amount_of(body["value"]) or _ZERO
        bought = self._products.get(body["orderEventId"], ((UNKNOWN, _ALL),))
        return _Order(number, self._shared(tuple(shares)), assisted, currency, revenue, customer, bought)

    def _shares_of_rows(self, order: _Order, index: int) -> _Shares:
        """The shares of an order by the model of this index, divided among its products if a row is one."""
        shares = order.shares[index]
        if self._product is None:
            return shares
        found = []
        for campaign, weight in shares:
            kind = campaign.kind if self._fields else "campaign"
            fields = campaign.fields or (campaign.label, *[None] * len(self._fields))[: len(self._fields)]
            for name, part in order.products:
                names = (*fields[: self._product], name, *fields[self._product :])
                found.append((Campaign(kind, names), weight * part))
        return tuple(found)

    def _path(self, steps: Sequence[Campaign], left_out: int) -> Campaign:
        """The sequence of touchpoints, the oldest first. Equal ones in succession are one step."""
        labels: list[str] = []
        for index, step in enumerate(steps):
            if index == 1 and left_out:
                labels.append("…")
            if index == 0 or self._same(step) != self._same(steps[index - 1]):
                labels.append(step.label)
        if not labels:
            return self._direct()
        if len(labels) > _MOST_STEPS:
            labels = [labels[0], "…", *labels[-_LAST_STEPS:]]
        return Campaign("path", (" > ".join(labels),))

    # Columns

    def _campaign(self, event_id: str, texts: Mapping[str, Any] | None) -> Campaign:
        """What tells the rows of touchpoints apart. `texts` is None if a record had no room for them."""
        if texts is None:
            return OTHERS
        fields = tuple(self._field(name, event_id, texts) for name in self._fields)
        direct = self._direct()  # some tag visits with the source (direct)
        return direct if fields == direct.fields else self._shared(Campaign("campaign", fields))

    def _field(self, name: str, event_id: str, texts: Mapping[str, Any]) -> str | None:
        if name == "landing":
            return self._pages.get(event_id, UNKNOWN)
        found: str | None = self._channel(texts) if name == "channel" else texts.get(name)
        return found or None

    def _direct(self) -> Campaign:
        if "channel" not in self._fields:
            return DIRECT
        texts = {"channel": _CHANNEL_OF_DIRECT, "source": DIRECT.label}
        return self._shared(Campaign("direct", tuple(map(texts.get, self._fields))))

    def _same(self, campaign: Campaign) -> Campaign:
        """The same for all campaigns of a row."""
        if self._keep_case:
            return campaign
        return Campaign(campaign.kind, tuple(field and field.lower() for field in campaign.fields))

    def _shared(self, value: _Value) -> _Value:
        found: _Value = self._equal.setdefault(value, value)
        return found

    # Rows

    def rows(self) -> list[Row]:
        return [line.row for line in self.lines()]

    def lines(self, *, compare: bool = False, group: Callable[[int], int] | None = None) -> list[Line]:
        """The rows of each period that is shown, with `compare` beside those of the period before.

        `group` replaces the numbers of periods, so that several become one.
        """
        with localcontext(EXACT):
            ranks = self._ranked_by_model(compare=compare, group=group)
        by_model = [{(number, *row[:2]): row for number, rows in rank.items() for row in rows} for rank in ranks]
        found = []
        for number in filter(self._is_shown, sorted(ranks[0])):
            for row in ranks[0][number]:
                before = by_model[0].get((number - 1, *row[:2]), _without_orders(row)) if compare else None
                found.append(Line(number, row, before, [each[number, *row[:2]] for each in by_model[1:]]))
        return found

    def orders(self) -> Iterator[Sold]:
        """The orders of all periods."""
        for id_, order in self._orders.items():
            if not order.is_superseded:
                yield Sold(id_, order.number, order.currency, order.revenue, order.reversed, order.shares[0])

    def sessions(self) -> Counter[int]:
        """The sessions of all periods, by number."""
        numbers = (self._numbers(session.start) for session in self._sessions.values())
        return Counter(number for number in numbers if number is not None)

    @property
    def visitors(self) -> int:
        """The visitors of all sessions that are shown."""
        shown = (each for each in self._sessions.values() if self._is_shown(self._numbers(each.start)))
        return len({each.visitor for each in shown})

    def _is_shown(self, number: int | None) -> bool:
        return number is not None and number >= self._first

    def _ranked_by_model(
        self, *, compare: bool, group: Callable[[int], int] | None
    ) -> Sequence[Mapping[int, Sequence[Row]]]:
        """The rows of each period, by each model."""
        orders = [order for order in self._orders.values() if not order.is_superseded]
        if group is not None:
            orders = [replace(order, number=group(order.number)) for order in orders]
        is_new = self._first_orders(orders)
        amounts = [self._amounts(orders, index, is_new) for index in range(len(self._models))]
        assisted = _Counts((each.number, campaign, each.currency) for each in orders for campaign in each.assisted)
        visits, costs = self._visits(group), self._costs
        if not self._keep_case:
            spelling = Spelling()
            for (_, campaign, _), sums in amounts[0].items():
                spelling.count(campaign, sums[0], 0)
            for (_, campaign), (sessions, _) in visits.items():
                spelling.count(campaign, _ZERO, sessions)
            for _, campaign, _ in chain(assisted, costs, *amounts[1:]):
                spelling.count(campaign, _ZERO, 0)
            amounts = [spelling.merged(each, _added) for each in amounts]
            assisted = _Counts(spelling.merged(assisted, int.__add__))
            visits = spelling.merged(visits, lambda one, other: (one[0] + other[0], one[1] | other[1]))
            costs = spelling.merged(costs, _spent)
        currencies = Counter(order.currency for order in orders)
        main = min(currencies, key=lambda each: (-currencies[each], each or ""), default=None)
        keys: dict[_Key, None] = dict.fromkeys(chain(assisted, costs, *amounts))
        keys |= dict.fromkeys((number, campaign, main) for number, campaign in visits)
        if compare:
            last = max([self._last, *(each[0] for each in keys)])
            keys |= dict.fromkeys((each[0] + 1, each[1], each[2]) for each in [*keys] if each[0] < last)
        rest = _Rest(assisted, visits, costs, main)
        return [self._ranked(keys, each, rest) for each in amounts]

    def _ranked(
        self, keys: Iterable[_Key], amounts: Mapping[_Key, Sequence[Decimal]], rest: _Rest
    ) -> Mapping[int, Sequence[Row]]:
        """The rows of each period. Sessions have no currency, and stand in the rows of the main one."""
        converted: dict[_VisitKey, Decimal] = {}
        for (number, campaign, _), sums in amounts.items():
            converted[number, campaign] = converted.get((number, campaign), _ZERO) + sums[0]
        rows: dict[int, list[Row]] = {}
        for key in keys:
            number, campaign, currency = key
            count, revenue, reversed_, new, returning = amounts.get(key, _NONE)
            row = Row(campaign, currency, count, revenue, reversed_, revenue - reversed_, new=new, returning=returning)
            if self._product is None and not self._paths:
                row = row._replace(assisted=rest.assisted.get(key, 0))
            if self.has_sessions and currency == rest.main:
                sessions, visitors = rest.visits.get((number, campaign), (0, set()))
                all_orders = converted.get((number, campaign), _ZERO)
                row = row._replace(sessions=sessions, visitors=len(visitors), converted=all_orders)
            if key in rest.costs:
                cost, clicks, impressions = rest.costs[key]
                row = row._replace(cost=cost, clicks=clicks, impressions=impressions)
            rows.setdefault(number, []).append(row)
        return {number: ranked(some) for number, some in rows.items()}

    def _amounts(
        self, orders: Iterable[_Order], index: int, is_new: Mapping[str, bool | None]
    ) -> dict[_Key, list[Decimal]]:
        """The orders, revenue, reversals, first orders and other orders of each row, by the model of this index."""
        found: dict[_Key, list[Decimal]] = {}
        for order in orders:
            shares = self._shares_of_rows(order, index)
            weights = [weight for _, weight in shares]
            first = is_new[order.customer.id]
            counts = divide(_ALL, weights)
            none = [_ZERO] * len(weights)
            columns = (
                counts, divide(order.revenue, weights), divide(order.reversed, weights) if order.reversed else none,
                counts if first else none, counts if first is False else none,
            )  # fmt: skip
            for (campaign, _), *parts in zip(shares, *columns, strict=True):
                key = order.number, campaign, order.currency
                known = found.get(key)
                found[key] = parts if known is None else _added(known, parts)
        return found

    def _visits(self, group: Callable[[int], int] | None) -> dict[_VisitKey, tuple[int, set[str]]]:
        """The number of sessions and the visitors, by period and first touchpoint."""
        found: dict[_VisitKey, tuple[int, set[str]]] = {}
        for session in self._sessions.values():
            number = self._numbers(session.start)
            if number is not None:
                number = number if group is None else group(number)
                sessions, visitors = found.get((number, session.campaign), (0, set()))
                visitors.add(session.visitor)
                found[number, session.campaign] = sessions + 1, visitors
        return found

    def _first_orders(self, orders: Sequence[_Order]) -> Mapping[str, bool | None]:
        """Whether an attribution is of the first order of its customer. None if the customer has been forgotten."""
        known: set[str] = set()
        found = {}
        customers = [*self._customers.values(), *(order.customer for order in orders)]
        for customer in sorted(customers, key=lambda each: (each.at, each.id)):
            names = customer.names
            found[customer.id] = known.isdisjoint(names) if names else None
            known.update(names)
        return found


def _added(one: list[Decimal], other: list[Decimal]) -> list[Decimal]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _spent(one: _Spent, other: _Spent) -> _Spent:
    return EXACT.add(one[0], other[0]), one[1] + other[1], one[2] + other[2]


def _without_orders(row: Row) -> Row:
    """The row of a period that has nothing of it."""
    zeros: dict[str, Any] = {name: 0 for name, each in zip(Row._fields[6:], row[6:], strict=True) if each is not None}
    return Row(row.campaign, row.currency, _ZERO, _ZERO, _ZERO, _ZERO, **zeros)


def _texts(touch: Touch) -> Mapping[str, Any]:
    return msgspec.structs.asdict(touch)
