"""The answers to the questions of examples/warehouse, computed from records as `ingestd events export` prints them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

__all__ = ["answers"]

_ZERO = Decimal(0)
_Row = list[Any]


def answers(bodies: Iterable[bytes], tenant: str = "shop") -> dict[str, list[_Row]]:
    """The rows of each answer, by the name of its question."""
    records = [json.loads(body, parse_float=Decimal, parse_int=Decimal) for body in bodies]
    with localcontext(Context(prec=100)):
        return _Shop([each for each in records if each["tenant"] == tenant]).answers()


def _day(text: str) -> date:
    return datetime.fromisoformat(text).date()


def _received(record: Mapping[str, Any]) -> str:
    return str(record.get("decidedAt") or record["receivedAt"])


def _value(record: Mapping[str, Any]) -> Decimal:
    value = record["value"]
    found: Decimal = next((each for each in (value["revenue"], value["total"]) if each is not None), _ZERO)
    return found


def _amount(product: Mapping[str, Any]) -> Decimal:
    return Decimal(product.get("price", 0)) * Decimal(product.get("quantity", 1))


def _fine(number: Decimal, decimals: int = 9) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)


class _Shop:
    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.events = [each for each in records if each["type"] == "event"]
        self.visits = [each for each in records if each["type"] in {"event", "identify"}]
        self.reversals = [each for each in records if each["type"] == "attribution_reversal"]
        superseded = {each["attributionId"] for each in self.reversals if each["reason"] == "superseded"}
        decided = [each for each in records if each["type"] == "attribution"]
        self.orders = [each for each in decided if each["id"] not in superseded]
        self.reversed: dict[str, Decimal] = defaultdict(Decimal)
        for each in self.reversals:
            if each["reason"] != "superseded":
                self.reversed[each["attributionId"]] += _value(each)
        known: set[tuple[str, str]] = set()
        self.first: set[str] = set()
        for order in sorted(self.orders, key=lambda each: (each["orderAt"], each["id"])):
            names = {(name, order[name]) for name in ("userId", "anonymousId") if order[name] is not None}
            if not names & known:
                self.first.add(order["id"])
            known |= names

    def answers(self) -> dict[str, list[_Row]]:
        return {
            "revenue by campaign and day": self._summed(
                lambda order, texts: (
                    _day(_received(order)).isoformat(), self._currency(order),
                    *(texts.get(name) for name in ("channel", "source", "medium", "name")),
                )
            ),
            "funnel": [self._funnel()],
            "sessions a user": self._sessions_of_users(),
            "retention": self._retention(),
            "models beside each other": self._by_model(),
            "refunds by product": self._refunds(),
            "top products": self._products(),
            "time to purchase": self._days_to_purchase(),
            "first and returning customers": self._customers(),
            "abandoned carts": [self._carts()],
        }  # fmt: skip

    def _currency(self, order: Mapping[str, Any]) -> str | None:
        currency = order["value"]["currency"]
        return (currency.strip().upper() or None) if currency is not None else None

    def _net(self, order: Mapping[str, Any]) -> Decimal:
        return _value(order) - self.reversed[order["id"]]

    def _shares(self, order: Mapping[str, Any], model: str) -> list[tuple[Mapping[str, Any], Decimal, Decimal]]:
        """The touchpoints with their shares of the order and of its net value. The last of them has the rest."""
        listed = order["touchpoints"]
        texts = {each["eventId"]: listed[int(each["sameAs"])] if "sameAs" in each else each for each in listed}
        if order["touchpoint"] is not None and len(texts[order["touchpoint"]["eventId"]]) == 1:
            texts[order["touchpoint"]["eventId"]] = order["touchpoint"]
        parts = [(texts[each["eventId"]], each["weight"]) for each in order["credits"][model]]
        parts = parts or [({"channel": "Direct"}, Decimal(1))]
        found, left, rest = [], Decimal(1), self._net(order)
        for touchpoint, weight in parts[:-1]:
            of_parts = [_fine(_fine(each) * weight) for each in (_value(order), self.reversed[order["id"]])]
            found.append((touchpoint, weight, of_parts[0] - of_parts[1]))
            left, rest = left - weight, rest - (of_parts[0] - of_parts[1])
        return [*found, (parts[-1][0], left, rest)]

    def _summed(self, key_of: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, ...]]) -> list[_Row]:
        sums: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [_ZERO, _ZERO])
        for order in self.orders:
            for texts, share, net in self._shares(order, order["model"]):
                row = sums[key_of(order, texts)]
                row[0] += share
                row[1] += net
        return [[*key, *row] for key, row in sums.items()]

    def _by_model(self) -> list[_Row]:
        models = ("last_touch", "first_touch", "linear", "position_based", "time_decay")
        sums: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [_ZERO] * len(models))
        for order in self.orders:
            for index, model in enumerate(models):
                for texts, _, net in self._shares(order, model):
                    sums[self._currency(order), texts.get("channel"), texts.get("source")][index] += net
        return [[*key, *row] for key, row in sums.items()]

    def _times(self, key: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for event in self.events:
            if event["key"] == key:
                found[event["sessionId"]].append(event["timestamp"])
        return found

    def _funnel(self) -> _Row:
        viewed, added, ordered = map(self._times, ("Product Viewed", "Product Added", "Order Completed"))
        carts = {each for each in viewed if added[each] and max(added[each]) >= min(viewed[each])}
        orders = {each for each in carts if ordered[each] and max(ordered[each]) >= max(added[each])}
        return [len(viewed), len(carts), len(orders)]

    def _carts(self) -> _Row:
        added, ordered = map(self._times, ("Product Added", "Order Completed"))
        bought = sum(bool(ordered[each]) and max(ordered[each]) >= max(times) for each, times in added.items())
        return [len(added), bought, len(added) - bought]

    def _sessions(self) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for visit in self.visits:
            found[visit["sessionId"]].append(visit)
        return found

    def _sessions_of_users(self) -> list[_Row]:
        rows: dict[str, _Row] = {}
        for visits in self._sessions().values():
            user = next((each["userId"] for each in reversed(visits) if each["userId"] is not None), None)
            if user is not None:
                row = rows.setdefault(user, [user, 0, 0, 0])
                row[1] += 1
                row[2] += sum(each.get("key") == "Page View" for each in visits)
                row[3] += len({each["data"]["order_id"] for each in visits if each.get("key") == "Order Completed"})
        return [*rows.values()]

    def _first_days(self) -> dict[str, date]:
        days: dict[str, date] = {}
        for visit in self.visits:
            days.setdefault(visit["anonymousId"], _day(visit["receivedAt"]))
        return days

    def _retention(self) -> list[_Row]:
        first, found = self._first_days(), defaultdict(set)
        for visits in self._sessions().values():
            visitor = visits[0]["anonymousId"]
            monday = first[visitor] - timedelta(days=first[visitor].weekday())
            week = (_day(visits[0]["receivedAt"]) - first[visitor]).days // 7
            found[monday.isoformat(), week].add(visitor)
        return [[*key, len(visitors)] for key, visitors in found.items()]

    def _refunds(self) -> list[_Row]:
        events = {each["id"]: each for each in self.events}
        sums: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
        orders = defaultdict(set)
        for each in self.reversals:
            for product in events[each["cause"]]["data"].get("products", ()) if each["reason"] == "refund" else ():
                key = product["name"], self._currency(each)
                orders[key].add(each["attributionId"])
                if "price" in product:
                    sums[key] += _amount(product)
        return [[*key, len(names), sums.get(key)] for key, names in orders.items()]

    def _products(self) -> list[_Row]:
        events = {each["id"]: each for each in self.events}
        sums: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [_ZERO, _ZERO])
        for order in self.orders:
            for product in events[order["orderEventId"]]["data"].get("products", ()):
                row = sums[product["name"], self._currency(order)]
                row[0] += product.get("quantity", 1)
                row[1] += _amount(product)
        rows = [[*key, *row] for key, row in sums.items()]
        return sorted(rows, key=lambda row: (-row[3], row[0], row[1]))[:10]

    def _days_to_purchase(self) -> list[_Row]:
        first, counts = self._first_days(), Counter[int]()
        for order in self.orders:
            if order["id"] in self.first:
                counts[(_day(_received(order)) - first[order["anonymousId"]]).days] += 1
        return [[days, count] for days, count in counts.items()]

    def _customers(self) -> list[_Row]:
        rows: dict[tuple[Any, ...], _Row] = {}
        for order in self.orders:
            key = _day(_received(order)).replace(day=1).isoformat(), self._currency(order)
            row = rows.setdefault(key, [*key, 0, 0, _ZERO, _ZERO])
            index = 2 if order["id"] in self.first else 3
            row[index] += 1
            row[index + 2] += self._net(order)
        return [*rows.values()]
