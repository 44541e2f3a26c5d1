"""A day of a shop, and what its report must say: the contract with callers as a plain count, without ingestd's code."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

from ingestd.api.events import Record

from .attribution import START, Shop

__all__ = ["DAY", "TENANTS", "Row", "count_day", "first_events", "make_day"]

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
TENANTS = ("outlet", "shop")  # of a cluster with two partitions, each has one
SITE = "https://www.shop.example/"

GOOGLE = "https://www.google.com/"
SOURCES: Mapping[str, tuple[str, str | None, str]] = {
    GOOGLE: ("google", "organic", "Organic Search"),
    "https://l.instagram.com/": ("instagram", "social", "Organic Social"),
    "https://chatgpt.com/": ("chatgpt", "ai", "AI Assistant"),
    "https://blog.example.net/mugs": ("blog.example.net", "referral", "Referral"),
    "gclid": ("google", "cpc", "Paid Search"),
    "fbclid": ("facebook", None, "Organic Social"),
}
CAMPAIGNS = {
    ("newsletter", "email"): "Email", ("google", "cpc"): "Paid Search", ("instagram", "paid_social"): "Paid Social",
    ("acme", "affiliate"): "Affiliates",
}  # fmt: skip
ARRIVALS = [
    ("", ""), ("", ""), ("", GOOGLE), ("", GOOGLE), ("", "https://l.instagram.com/"), ("", "https://chatgpt.com/"),
    ("", "https://blog.example.net/mugs"), ("?gclid=a", GOOGLE), ("?fbclid=b", "https://l.instagram.com/"),
    ("?utm_source=newsletter&utm_medium=email&utm_campaign=may", ""),
    ("?utm_source=google&utm_medium=cpc&gclid=c", GOOGLE), ("?utm_source=instagram&utm_medium=paid_social", ""),
    ("?utm_source=acme&utm_medium=affiliate", "https://blog.example.net/mugs"), ("dispatch", ""),
]  # fmt: skip
"""The query and the referrer of the page on which a visit begins."""
PAYMENTS = ("https://www.paypal.com/checkout", "https://hooks.stripe.com/3d", "https://accounts.google.com/")


class _Sent(NamedTuple):
    at: int
    number: int
    tenant: str
    visitor: str
    key: str
    query: str
    referrer: str
    data: dict[str, Any]
    age: int = 0
    user: str | None = None
    signed: bool = False


def make_day(seed: int, visitors: int, late: float = 0.1) -> list[Record]:
    """The records of a day of two shops, as they are received. Of so many visits the first event comes late."""
    chance = random.Random(seed)
    numbers = count()
    sent = [
        each
        for tenant in TENANTS
        for number in range(visitors)
        for each in _visits(chance, numbers, tenant, f"{tenant}-{number}", late)
    ]
    shop, records = Shop(), []
    sessions: dict[tuple[str, str], tuple[int, int]] = {}
    for index, each in enumerate(sorted(sent)):
        shop.now = each.at
        session, last = sessions.get((each.tenant, each.visitor), (0, 0))
        is_new = each.at - last > 30 * MINUTE
        session = index if is_new else session
        sessions[each.tenant, each.visitor] = session, each.at
        is_dispatch = each.query == "dispatch"
        context = {"page": {"url": SITE + ("" if is_dispatch else each.query), "referrer": each.referrer}}
        if each.key == "identify":
            records.append(shop.identify(each.visitor, each.user, context=context, tenant=each.tenant, session=session))
            continue
        records.append(
            shop.event(
                each.key, each.visitor, each.data, user=each.user, age=each.age, tenant=each.tenant, session=session,
                context={} if each.signed else context, signed=each.signed, dispatch="d-1" if is_dispatch else None,
                is_new=is_new,
            )
        )  # fmt: skip
    return records


class _Visit(NamedTuple):
    """A visit. If the shop is one document, all its pages repeat the address and the referrer of the first."""

    numbers: Iterator[int]
    tenant: str
    visitor: str
    query: str
    referrer: str
    is_one_document: bool

    def page(self, at: int, key: str = "Page View", referrer: str = f"{SITE}mugs", **more: Any) -> _Sent:
        query, referrer = (self.query, self.referrer) if self.is_one_document else ("cart", referrer)
        return _Sent(at, next(self.numbers), self.tenant, self.visitor, key, query, referrer, **{"data": {}, **more})


def _visits(chance: random.Random, numbers: Iterator[int], tenant: str, visitor: str, late: float) -> Iterator[_Sent]:
    at, user = START + chance.randrange(DAY), f"user-{chance.randrange(40)}"
    for _ in range(chance.choice([1, 1, 2, 3])):
        visit = _Visit(numbers, tenant, visitor, *chance.choice(ARRIVALS), is_one_document=chance.random() < 0.5)
        first = visit._replace(is_one_document=True).page(at)
        is_late = chance.random() < late  # it comes after the second page, and happened before
        if not is_late:
            yield first
        for step in range(chance.randrange(1, 5)):
            at += chance.randrange(1, 20) * MINUTE
            yield visit.page(at)
            if is_late and step == 0:
                yield first._replace(at=at + 1, age=at + 1 - first.at)
        if chance.random() < 0.3:
            yield visit.page(at + 2, "identify", user=user)
        if chance.random() < 0.4:
            at += 2 * MINUTE
            data = {
                "order_id": f"o-{next(numbers)}", "revenue": chance.choice([40, 12.5, 99.99]),
                "currency": chance.choice(["EUR", "EUR", "eur", "CHF"]),
            }  # fmt: skip
            order = visit.page(at, "Order Completed", chance.choice(PAYMENTS), data=data)
            yield from _order(chance, numbers, order._replace(user=chance.choice([None, None, user])))
        at += chance.randrange(10, 600) * MINUTE


def _order(chance: random.Random, numbers: Iterator[int], order: _Sent) -> Iterator[_Sent]:
    """The order, perhaps sent again or by the back end too, and perhaps taken back, even before it came."""
    yield order
    if chance.random() < 0.2:
        yield order._replace(at=order.at + MINUTE, number=next(numbers))
    backend = order._replace(number=next(numbers), signed=True, query="", referrer="")
    if chance.random() < 0.3:
        yield backend._replace(at=order.at + chance.choice([-MINUTE, MINUTE]))
    name = {"order_id": order.data["order_id"]}
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        later = chance.choice([-MINUTE, 5 * MINUTE, 90 * MINUTE])
        refund = {**name, "revenue": chance.choice([5, 12.51, 70]), "refund_id": f"r-{chance.randrange(2)}"}
        yield backend._replace(at=order.at + later, number=next(numbers), key="Order Refunded", data=refund)
    if chance.random() < 0.1:
        yield backend._replace(at=order.at + DAY // 8, number=next(numbers), key="Order Cancelled", data=name)


# The count


class Row(NamedTuple):
    sessions: int
    visitors: int
    orders: Decimal
    net: Decimal


_Name = tuple[str, str | None, str | None]
"""Channel, source and medium."""
_DIRECT: _Name = "Direct", "(direct)", None


class _Arrival(NamedTuple):
    at: str
    position: int
    record: Mapping[str, Any]
    kind: str
    name: _Name
    marks: tuple[Any, ...]
    """Campaign, click id and dispatch, each None if missing."""


def count_day(
    records: Sequence[Mapping[str, Any]], tenant: str, since: str, until: str, *, is_linear: bool
) -> dict[tuple[_Name, str | None], Row]:
    """The rows of a tenant's report by currency; None stands for sessions, which have none.

    An order belongs to its last touchpoint, or with `is_linear` to all touchpoints equally.
    """
    mine = [(index, each) for index, each in enumerate(records) if each["tenant"] == tenant]
    seen = [each for each in mine if each[1]["type"] in {"event", "identify"}]
    arrivals = [found for each in seen if (found := _arrival(*each)) is not None]
    rows: dict[tuple[_Name, str | None], list[Any]] = defaultdict(lambda: [0, set(), Decimal(0), Decimal(0)])
    for session, first in first_events(seen).items():
        if since <= first["receivedAt"] < until:
            some = [each for each in arrivals if each.record["sessionId"] == session]
            row = rows[min(some).name if some else _DIRECT, None]
            row[0] += 1
            row[1].add(first["anonymousId"])
    for order, net in _orders(seen):
        position, record = order
        if since <= record["receivedAt"] < until:
            names = _credited(arrivals, seen, position, record)
            for name in names if is_linear else names[-1:]:
                row = rows[name, record["data"]["currency"].upper()]
                row[2] += 1 / Decimal(len(names) if is_linear else 1)
                row[3] += net / (len(names) if is_linear else 1)
    return {name: Row(row[0], len(row[1]), *row[2:]) for name, row in rows.items()}


def first_events(seen: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """The first event of each session, which has its time and visitor. What a back end tells of an order is none."""
    found: dict[str, Mapping[str, Any]] = {}
    for _, record in seen:
        is_told = record["signed"] and record.get("key", "").startswith("Order ")
        if not is_told or (record["sessionIsNew"] and record["key"] == "Order Completed"):
            found.setdefault(record["sessionId"], record)
    return found


def _arrival(position: int, record: Mapping[str, Any]) -> _Arrival | None:
    page = record["context"].get("page", {})
    pairs = [each.partition("=")[::2] for each in page.get("url", "").partition("?")[2].split("&")]
    query, dispatch = dict(pairs), record["dispatchId"]
    click = next(((name, query[name]) for name in ("gclid", "fbclid") if name in query), None)
    campaign = (query["utm_source"], query["utm_medium"], query.get("utm_campaign")) if "utm_source" in query else None
    if campaign is not None:
        kind, name = "campaign", (CAMPAIGNS[campaign[:2]], *campaign[:2])
    elif click is not None or (dispatch is None and page.get("referrer") in SOURCES):
        kind = "referrer" if click is None else "click"
        source, medium, channel = SOURCES[page["referrer"] if click is None else click[0]]
        name = channel, source, medium
    elif dispatch is not None:
        kind, name = "dispatch", ("Unassigned", None, None)
    else:
        return None
    return _Arrival(record["timestamp"], position, record, kind, name, (campaign, click, dispatch))


def _credited(
    arrivals: Sequence[_Arrival], seen: Sequence[tuple[int, Mapping[str, Any]]], position: int, order: Mapping[str, Any]
) -> list[_Name]:
    """The touchpoints before the order, the oldest first. Referrers count only if there is no other."""
    users: dict[str, str] = {}
    for at, record in seen:
        if at < position and record["type"] == "identify" and record["userId"] is not None:
            users[record["anonymousId"]] = record["userId"]
    user = order["userId"] or users.get(order["anonymousId"])
    visitors = {order["anonymousId"], *(each for each, linked in users.items() if linked == user is not None)}
    touches: dict[tuple[str, str], list[_Arrival]] = defaultdict(list)
    some = (each for each in arrivals if each.record["anonymousId"] in visitors and each.position < position)
    for each in sorted(some):
        run = touches[each.record["anonymousId"], each.record["sessionId"]]
        if not run or (
            each.kind != "referrer"
            and any(own not in {None, last} for own, last in zip(each.marks, run[-1].marks, strict=True))
        ):
            run.append(each)
    found = sorted(each for run in touches.values() for each in run if each.at <= order["timestamp"])
    found = [each for each in found if each.kind != "referrer"] or found
    return [each.name for each in found] or [_DIRECT]


def _orders(
    seen: Sequence[tuple[int, Mapping[str, Any]]],
) -> Iterator[tuple[tuple[int, Mapping[str, Any]], Decimal]]:
    """The order that counts of each id, a signed one if there is one, with what is left of its revenue."""
    orders: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for each in seen:
        if each[1].get("key") == "Order Completed":
            known = orders.setdefault(each[1]["data"]["order_id"], each)
            if each[1]["signed"] and not known[1]["signed"]:
                orders[each[1]["data"]["order_id"]] = each
    for name, order in orders.items():
        left, refunds = Decimal(str(order[1]["data"]["revenue"])), set()
        for _, record in seen:
            if record.get("key") == "Order Cancelled" and record["data"]["order_id"] == name:
                left = Decimal(0)
            elif record.get("key") == "Order Refunded" and record["data"]["order_id"] == name:
                if record["data"]["refund_id"] not in refunds:
                    left -= min(left, Decimal(str(record["data"]["revenue"])))
                refunds.add(record["data"]["refund_id"])
        yield order, left
