"""Counts records of a journal for the rows of a report: orders with their reversals, customers, sessions and costs.

This is pure: records in, rows out. The memory grows with the sessions, orders and customers of the records, and not
with their events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.amounts import EXACT, currency_code, decimal
from ..attribution.campaigns import Campaign, add_weights
from ..attribution.models import Model
from ..attribution.record_size import texts_of
from ..attribution.report import Row, amount_of, is_too_large
from ..attribution.touches import Touch
from .columns import UNKNOWN, Columns, Products, Shares
from .costs import Cost
from .reading import Customer, page_path, products, read_customer, read_visit
from .sums import Order, Rest, RowKey, Spent, Sums, Visits, add_spent, rested

__all__ = ["Line", "Report"]

_COST_COLUMNS = {"channel", "source", "medium", "name"}
_ZERO, _ALL = Decimal(0), Decimal(1)


class Line(NamedTuple):
    """A row of a period."""

    number: int
    """The number of the period."""
    row: Row
    before: Row | None = None
    """The same row of the period before."""
    by_model: Sequence[Row] = ()
    """The same row by each further model."""


@dataclass(slots=True)
class _Session:
    start: int
    visitor: str
    campaign: Campaign
    touched: tuple[int, int] | None = None
    """The sort key of its first touchpoint."""


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
        numbers: Callable[[int], int | None] = lambda at: 0,
        first: int = 0,
        last: int = 0,
        read_touch: Callable[[Record], Touch | None] | None = None,
        unusable_ids: UnusableIds | None = None,
        channel: Callable[[Mapping[str, Any]], str | None] = lambda texts: texts.get("channel"),
        tenant: str | None = None,
        since: int = 0,
        until: int | None = None,
        keep_case: bool = False,
        paths: bool = False,
        rest: Rest = lambda: None,
    ) -> None:
        """`columns` are those of `columns_of`. None among `models` is the model of each attribution.
        The rows are ranked by the first one.

        `numbers` returns the number of the period of an instant, None for no period of the report. `first` is that of
        the first period that is shown, and `last` that of the present or of the end.
        `read_touch` returns the touchpoint that a record is. Without it, no sessions are counted. Events received
        before `since` count for nothing, and sessions that begin at `until` or later. With `paths`, a row is a sequence
        of touchpoints before orders. `rest` is called often while the rows are made.
        """
        self._rest = rest
        self._columns = Columns(columns, channel, keep_case=keep_case, paths=paths)
        self._models = models
        self._numbers, self._first, self._last = numbers, first, last
        self._read_touch, self._unusable_ids = read_touch, unusable_ids or UnusableIds()
        self.tenant, self._since, self._until = tenant, since, until
        self.has_sessions = read_touch is not None and self._columns.are_touchpoints
        self.takes_costs = not paths and {*columns} <= _COST_COLUMNS
        """Whether costs of campaigns belong to single rows."""
        self.tenants: set[str] = set()
        """The tenants of orders and sessions."""
        self._costs: dict[RowKey, Spent] = {}
        self._reads_all = not {"product", "landing"}.isdisjoint(columns)
        """Whether events before the period matter too."""
        self.not_counted = 0
        """Orders with an amount that is too large to count."""
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._visitors: dict[str, str] = {}
        self._orders: dict[str, Order] = {}
        """The orders by the id of their attribution."""
        self._customers: dict[str, Customer] = {}
        """The customers of orders outside of the report, by the same id."""
        self._reversals: set[str] = set()
        self._products: dict[str, Products] = {}

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
                if self.tenant in {None, customer.tenant}:
                    self._customers.setdefault(customer.id, customer)
        elif record.type == "attribution_reversal":
            self.add_derived(record.decode())

    def add_derived(self, body: Mapping[str, Any], number: int = 0) -> None:
        """Add an attribution of the period of this number, or a reversal.

        A reversal counts in the rows of its attribution, and only if the attribution was added before. A superseded
        order does not count.
        """
        if self.tenant not in {None, body["tenant"]}:
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
        """Add the cost of a campaign. Call this for each once, if `takes_costs`.

        `number` is that of its period, and with `group` of its group.
        """
        texts = {"source": cost.source, "medium": cost.medium, "name": cost.campaign}
        key = number, self._columns.of_touchpoint("", texts), cost.currency
        spent = cost.cost, cost.clicks or 0, cost.impressions or 0
        self._costs[key] = add_spent(self._costs[key], spent) if key in self._costs else spent

    # Events

    def _add_event(self, record: Record) -> None:
        if not self._reads_all and (record.at < self._since or not self.has_sessions):
            return
        found = read_visit(record)
        if found is None or self.tenant not in {None, found[1].tenant}:
            return
        at, visit = found
        if self._columns.product is not None and visit.key == "Order Completed" and visit.anonymousId is not None:
            self._products[visit.id] = self._columns.shared(products(record))
        touch = None
        if self._read_touch is not None and (self.has_sessions or "landing" in self._columns.fields):
            touch = self._read_touch(record)
        if touch is not None and "landing" in self._columns.fields:
            self._columns.pages[visit.id] = self._columns.shared(page_path(record))
        if not self.has_sessions or at < self._since or visit.sessionId is None or visit.anonymousId is None:
            return
        if visit.anonymousId not in self._unusable_ids and visit.is_visit:
            self._add_visit(at, visit.tenant, visit.sessionId, visit.anonymousId, touch)

    def _add_visit(self, at: int, tenant: str, session_id: str, visitor: str, touch: Touch | None) -> None:
        session = self._sessions.get((tenant, session_id))
        if session is None or at < session.start:
            visitor = self._visitors.setdefault(f"{tenant}\0{visitor}", f"{tenant}\0{visitor}")
            if session is None:
                if self._until is not None and at >= self._until:
                    return
                self.tenants.add(tenant)
                session = self._sessions[tenant, session_id] = _Session(at, visitor, self._columns.direct())
            session.start, session.visitor = at, visitor
        if touch is not None and (session.touched is None or touch.order < session.touched):
            session.touched = touch.order
            session.campaign = self._columns.of_touchpoint(touch.event_id, msgspec.structs.asdict(touch))

    # Orders

    def _order(self, body: Mapping[str, Any], number: int) -> Order:
        touches = {event_id: self._columns.of_touchpoint(event_id, texts) for event_id, texts in texts_of(body)}
        shares = []
        for model in self._models:
            credits_ = body["credits"][model or body["model"]]
            if self._columns.paths:
                found: Shares = ((self._columns.of_path([*touches.values()], body.get("leftOut", 0)), _ALL),)
            else:
                credited = ((touches[each["eventId"]], each["weight"]) for each in credits_)
                weights = add_weights(credited, self._columns.direct())
                found = tuple((campaign, sum(map(decimal, parts), _ZERO)) for campaign, parts in weights.items())
            shares.append(self._columns.shared(found))  # many orders have equal shares
        assisted: Sequence[Campaign] = ()
        if self._columns.are_touchpoints:
            others = {self._columns.same(each): each for each in touches.values()}
            for campaign, _ in shares[0]:
                others.pop(self._columns.same(campaign), None)
            assisted = self._columns.shared(tuple(others.values()))
        self.not_counted += is_too_large(body)
        customer = Customer(
            body["id"], body["tenant"], body["decidedAt"], body["anonymousId"], body["userId"], body.get("orderAt")
        )
        currency = currency_code(body["value"]["currency"])
        revenue = amount_of(body["value"]) or _ZERO
        bought = self._products.get(body["orderEventId"], ((UNKNOWN, _ALL),))
        return Order(
            body.get("orderId"), body["orderEventId"], number, self._columns.shared(tuple(shares)), assisted, currency,
            revenue, customer, bought,
        )  # fmt: skip

    # Rows

    def lines(self, *, compare: bool = False, group: Callable[[int], int] | None = None) -> list[Line]:
        """The rows of each period that is shown, with `compare` beside those of the period before.

        `group` replaces the numbers of periods, so that several become one.
        """
        with localcontext(EXACT):
            ranks = self._sums(group).ranked(until=self._last if compare else None)
        by_model = [{(number, *row[:2]): row for number, rows in rank.items() for row in rows} for rank in ranks]
        found = []
        for number in filter(self._is_shown, sorted(ranks[0])):
            for row in rested(ranks[0][number], self._rest):
                before = by_model[0].get((number - 1, *row[:2]), _without_orders(row)) if compare else None
                found.append(Line(number, row, before, [each[number, *row[:2]] for each in by_model[1:]]))
        return found

    def orders(self) -> Iterator[Order]:
        """The orders of all periods."""
        return (order for order in rested(self._orders.values(), self._rest) if not order.is_superseded)

    def sessions(self) -> Counter[int]:
        """The sessions of all periods, by number."""
        numbers = (self._numbers(session.start) for session in rested(self._sessions.values(), self._rest))
        return Counter(number for number in numbers if number is not None)

    @property
    def visitors(self) -> int:
        """The visitors of all sessions that are shown."""
        sessions = rested(self._sessions.values(), self._rest)
        shown = (each for each in sessions if self._is_shown(self._numbers(each.start)))
        return len({each.visitor for each in shown})

    def _is_shown(self, number: int | None) -> bool:
        return number is not None and number >= self._first

    def _sums(self, group: Callable[[int], int] | None) -> Sums:
        orders = [*self.orders()]
        if group is not None:
            orders = [replace(order, number=group(order.number)) for order in rested(orders, self._rest)]
        visits = self._visits(group) if self.has_sessions else None
        earlier = self._customers.values()
        return Sums(self._columns, orders, earlier, visits, self._costs, models=len(self._models), rest=self._rest)

    def _visits(self, group: Callable[[int], int] | None) -> Visits:
        """The number of sessions and the visitors, by period and first touchpoint."""
        found: Visits = {}
        for session in rested(self._sessions.values(), self._rest):
            number = self._numbers(session.start)
            if number is not None:
                number = number if group is None else group(number)
                sessions, visitors = found.get((number, session.campaign), (0, set()))
                visitors.add(session.visitor)
                found[number, session.campaign] = sessions + 1, visitors
        return found


def _without_orders(row: Row) -> Row:
    """The row of a period that has nothing of it."""
    zeros: dict[str, Any] = {name: 0 for name, each in zip(Row._fields[6:], row[6:], strict=True) if each is not None}
    return Row(row.campaign, row.currency, _ZERO, _ZERO, _ZERO, _ZERO, **zeros)
