"""The expected attributions of a journal: docs/attribution.md as a plain model, slow and obvious.

The model shares no code with the plugin, and keeps no state that it could look up in the journal instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ingestd.plugins.sources import Channels

__all__ = ["DAY", "HOUR", "Reference", "Rules", "amount_of"]

HOUR = 3_600_000
DAY = 24 * HOUR
FIELDS = ("source", "medium", "name", "term", "content")
MAX_WAITING = 20
MAX_AMOUNT = 10**12
CLICKS = {"gclid": ("google", "cpc"), "fbclid": ("facebook", None)}
REFERRERS = {
    "https://www.google.com/": ("google", "organic"), "https://duckduckgo.com/": ("duckduckgo", "organic"),
    "https://www.instagram.com/": ("instagram", "social"),
    "https://blog.example.net/mugs": ("blog.example.net", "referral"),
}  # fmt: skip
"""Pages that name a source. All others name none."""
MODELS = ("last_touch", "first_touch", "linear", "position_based", "time_decay")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options of the plugin; times in milliseconds. `unusable` are those of `[ids]`."""

    model: Literal["last_touch", "first_touch", "linear", "position_based", "time_decay"] = "last_touch"
    window: int = 168 * HOUR
    half_life: int = 168 * HOUR
    late: int = 168 * HOUR
    order_memory: int = 9600 * HOUR
    max_touches: int = 200
    max_visitors: int = 100
    exclude_sources: tuple[str, ...] = ()
    exclude_mediums: tuple[str, ...] = ()
    exclude_domains: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ("guest",)
    orders: Literal["any", "signed"] = "any"
    referrers: Literal["fallback", "touchpoints", "off"] = "fallback"


class _Touch(NamedTuple):
    at: int
    position: int
    received: int
    tenant: str
    visitor: str
    shown: dict[str, Any]

    @property
    def session(self) -> str | None:
        session: str | None = self.shown["sessionId"]
        return session

    @property
    def is_referrer(self) -> bool:
        return bool(self.shown["kind"] == "referrer")


class _Link(NamedTuple):
    tenant: str
    visitor: str
    user: str
    at: int


@dataclass
class _Decided:
    order: Mapping[str, Any]
    user: str | None
    touchpoint: Mapping[str, Any] | None
    weights: dict[str, dict[str, float]]
    superseded: _Decided | None = None
    reversed: list[Fraction | None] = field(default_factory=list)
    refund_ids: set[tuple[str | None, bool]] = field(default_factory=set)
    """With whether the refund was signed."""


class _Waiting(NamedTuple):
    refund: Mapping[str, Any]
    applied: bool
    """Whether it has been applied to an order of a public key."""


class Reference:
    """`records` are the events and identify requests of a journal in its order, decoded by `Record.decode`.

    `derived` are the resulting records in order. They have neither `id` nor `ignored`, their credits map
    events to weights, and in place of `attributionId` a reversal has `attributionOf`: the id of the order's event.
    `orders` and `reversals` count the results.
    """

    def __init__(self, rules: Rules, records: Sequence[Mapping[str, Any]]) -> None:
        self.derived: list[dict[str, Any]] = []
        self.orders: Counter[str] = Counter()
        self.reversals: Counter[str] = Counter()
        self.amounts_ignored = 0
        self._rules = rules
        self._touches: list[_Touch] = []
        self._links: list[_Link] = []
        self._decided: dict[tuple[str, str], _Decided] = {}
        self._waiting: dict[tuple[str, str], list[_Waiting]] = {}
        for position, record in enumerate(records):
            if record.get("key") in {"Order Completed", "Order Refunded"}:
                names = ("revenue", "total", "value")[: 2 if record["key"] == "Order Completed" else 3]
                self.amounts_ignored += sum(_is_too_large(record["data"].get(name)) for name in names)
            if record.get("key") == "Order Completed":
                self._decide(record)
            elif record.get("key") in {"Order Refunded", "Order Cancelled"}:
                self._refund(record)
            shown = _touchpoint(record)
            if shown is not None and shown["kind"] == "referrer":
                is_off = self._rules.referrers == "off" or record["sessionId"] is None
                shown = None if is_off or self._excluded(shown, record["context"]) else shown
            named = self._named(record["anonymousId"]) is not None
            if shown is not None and named and not self._excluded(shown, record["context"]):
                at, received = _moment(record["timestamp"]), _moment(record["receivedAt"])
                self._touches.append(_Touch(at, position, received, record["tenant"], record["anonymousId"], shown))
            if record["type"] == "identify" and self._links_its_visitor(record, named=named):
                self._link(record, record["userId"])
            elif shown is not None and named:
                self._renew(record)

    def _link_of(self, record: Mapping[str, Any]) -> _Link | None:
        """The last link of the record's visitor."""
        visitor = record["tenant"], record["anonymousId"]
        return next((link for link in reversed(self._links) if (link.tenant, link.visitor) == visitor), None)

    def _renew(self, record: Mapping[str, Any]) -> None:
        """A touchpoint makes the link of its visitor anew if the link is older than 30 days, and still counts."""
        link = self._link_of(record)
        if link is not None and 30 * DAY < _moment(record["receivedAt"]) - link.at <= 400 * DAY:
            self._link(record, link.user)

    def _link(self, record: Mapping[str, Any], user: str) -> None:
        before, at = self._link_of(record), _moment(record["receivedAt"])
        at = max(at, before.at) if before is not None and before.user == user else at
        self._links.append(_Link(record["tenant"], record["anonymousId"], user, at))

    def _named(self, text: str | None) -> str | None:
        """The id, or None if the text names nobody."""
        return None if not text or text in self._rules.unusable else text

    def _links_its_visitor(self, record: Mapping[str, Any], *, named: bool) -> bool:
        linked: bool | None = record.get("linked")
        return named and self._named(record["userId"]) is not None if linked is None else linked

    def _decide(self, order: Mapping[str, Any]) -> None:
        if self._rules.orders == "signed" and not order["signed"]:
            self.orders["untrusted"] += 1
            return
        decided = self._earlier(order)
        superseded = None
        if decided is not None and order["signed"] and not decided.order["signed"]:
            superseded = decided
        elif decided is not None:
            self.orders["repeated" if _value(decided.order) == _value(order) else "conflict"] += 1
            return
        tenant, visitor, at = order["tenant"], order["anonymousId"], _moment(order["timestamp"])
        link, received = self._link_of(order), _moment(order["receivedAt"])
        is_linked = link is not None and received - link.at <= 400 * DAY and self._named(visitor) is not None
        user = order["userId"] or (link.user if link is not None and is_linked else None)
        oldest = max(at - self._rules.window, _moment(order["receivedAt"]) - self._rules.window - self._rules.late)
        journey = sorted(
            touch
            for each in {visitor, *self._visitors(tenant, self._named(user), received)} - {*self._rules.unusable}
            for touch in self._remembered(tenant, each)
            if oldest <= touch.at <= at
        )
        left_out = max(0, len(journey) - self._rules.max_touches)
        is_fallback = self._rules.referrers == "fallback"
        for _ in range(left_out):
            journey.remove(next((each for each in journey[1:] if is_fallback and each.is_referrer), journey[1]))
        credited = [each for each in journey if not (is_fallback and each.is_referrer)] or journey
        ages = [at - touch.at for touch in credited]
        shares = {model: _shares(model, ages, self._rules.half_life) for model in MODELS}
        best = max(range(len(credited)), key=lambda index: (shares[self._rules.model][index], index), default=None)
        too_large = [name for name in ("revenue", "total") if _is_too_large(order["data"].get(name))]
        weights = {
            model: {touch.shown["eventId"]: float(share) for touch, share in zip(credited, shares[model], strict=True)}
            for model in MODELS
        }
        if superseded is not None:
            self._supersede(superseded, order)
        touchpoint = None if best is None else credited[best].shown
        self._decided[self._order_name(order)] = _Decided(order, user, touchpoint, weights, superseded)
        self.orders["attributed" if journey else "direct"] += 1
        self.derived.append(
            {
                "type": "attribution",
                "tenant": tenant,
                "decidedAt": order["receivedAt"],
                "orderId": self._order_id(order),
                "orderEventId": order["id"],
                "orderAt": order["timestamp"],
                "anonymousId": visitor,
                "userId": user,
                "model": self._rules.model,
                "windowSeconds": self._rules.window // 1000,
                "value": _value(order) | {"currency": _currency_as_sent(order)},
                **({"notCounted": too_large} if too_large else {}),
                "touchpoint": touchpoint,
                "credits": weights,
                "touchpoints": [touch.shown for touch in journey],
                "leftOut": left_out,
            }
        )
        waiting = self._waiting.pop(self._order_name(order), [])
        waiting = [each for each in waiting if self._age(order, each.refund) <= self._rules.order_memory]
        if not order["signed"]:
            self._waiting[self._order_name(order)] = [
                _Waiting(each.refund, True) for each in waiting if each.refund["signed"]
            ]
            waiting = [each for each in waiting if not each.applied]
        for each in waiting:
            if order["signed"] and not each.refund["signed"]:
                self.reversals["untrusted"] += 1
            else:
                self._reverse(each.refund, self._decided[self._order_name(order)])

    def _supersede(self, superseded: _Decided, order: Mapping[str, Any]) -> None:
        """A signed order replaces one of a public key. The rest of the replaced order is reversed."""
        value = _value(superseded.order)
        whole = amount_of(value)
        left = None if whole is None else whole - sum(each for each in superseded.reversed if each)
        by = "revenue" if value["revenue"] is not None else "total"
        self.reversals["superseded"] += 1
        self.derived.append(
            {
                "type": "attribution_reversal",
                "tenant": order["tenant"],
                "decidedAt": max(order["receivedAt"], superseded.order["receivedAt"]),
                **_order_of(superseded),
                "reason": "superseded",
                "value": {
                    "revenue": None, "total": None, "currency": _currency_as_sent(superseded.order), by: left,
                },
                "cause": order["id"],
                "model": self._rules.model,
                "credits": superseded.weights,
            }
        )  # fmt: skip

    def _refund(self, refund: Mapping[str, Any]) -> None:
        decided = self._earlier(refund)
        is_less_trusted = decided is not None and decided.order["signed"] and not refund["signed"]
        if is_less_trusted or (self._rules.orders == "signed" and not refund["signed"]):
            self.reversals["untrusted"] += 1
        elif decided is not None:
            self._reverse(refund, decided)
            if refund["signed"] and not decided.order["signed"]:
                self._wait(refund, applied=True)
        elif self._order_id(refund) is None:
            self.reversals["unknown_order"] += 1
        else:
            self.reversals[self._wait(refund, applied=False)] += 1

    def _wait(self, refund: Mapping[str, Any], *, applied: bool) -> str:
        """Lets the refund wait for an order. With `applied` it waits for a signed order after one of a public key."""
        waiting = self._waiting.get(self._order_name(refund), [])
        waiting = [each for each in waiting if self._age(refund, each.refund) <= self._rules.order_memory]
        alike = [each.refund for each in waiting if each.refund["signed"] == refund["signed"]]
        if self._refund_id(refund) is not None and self._content(refund) in map(self._content, alike):
            return "repeated"
        if len(alike) == MAX_WAITING:
            return "too_many"
        self._waiting[self._order_name(refund)] = [*waiting, _Waiting(refund, applied)]
        return "waiting"

    def _reverse(self, refund: Mapping[str, Any], decided: _Decided) -> None:
        refund_id = self._refund_id(refund)
        trusted = [True] if refund["signed"] else [True, False]
        if refund_id is not None and any((refund_id, signed) in decided.refund_ids for signed in trusted):
            self.reversals["repeated"] += 1
            return
        value, asked, wanted = _value(decided.order), _value(refund), _amount_of_refund(refund)
        if value["currency"] and asked["currency"] and value["currency"] != asked["currency"]:
            self.reversals["other_currency"] += 1
            return
        if wanted == 0:
            self.reversals["no_amount"] += 1
            return
        whole = amount_of(value)
        amount = None
        if whole is None or not whole:  # there is no amount to divide, so there is one reversal without an amount
            nothing_left = bool(decided.reversed)
            amount = whole
        else:
            left = abs(whole) - sum(abs(each) for each in decided.reversed if each)
            amount = left if wanted is None else min(left, wanted)
            nothing_left = not amount
            amount = amount if whole > 0 else -amount
        if nothing_left:
            self.reversals["nothing_left"] += 1
            return
        decided.reversed.append(amount)
        decided.refund_ids.add((refund_id, refund["signed"]))
        self.reversals["reversed"] += 1
        by = "revenue" if value["revenue"] is not None else "total"
        self.derived.append(
            {
                "type": "attribution_reversal",
                "tenant": refund["tenant"],
                "decidedAt": max(refund["receivedAt"], decided.order["receivedAt"]),
                **_order_of(decided),
                "reason": "refund" if refund["key"] == "Order Refunded" else "cancel",
                "value": {"revenue": None, "total": None, "currency": _currency_as_sent(decided.order), by: amount},
                "cause": refund["id"],
                "model": self._rules.model,
                "credits": decided.weights,
            }
        )

    def _earlier(self, record: Mapping[str, Any]) -> _Decided | None:
        """The remembered decision on the order of this record, or None."""
        decided = self._decided.get(self._order_name(record))
        if decided is None:
            return None
        known = [each.order for each in (decided, decided.superseded) if each is not None]
        youngest = min(self._age(record, order) for order in known)
        return decided if youngest <= self._rules.order_memory else None

    @staticmethod
    def _age(now: Mapping[str, Any], record: Mapping[str, Any]) -> int:
        """The time in milliseconds from the receipt of `record` to the receipt of `now`."""
        return _moment(now["receivedAt"]) - _moment(record["receivedAt"])

    def _id(self, value: Any) -> str | None:
        """The text of an id, None if the id is unusable."""
        text = str(value)
        return None if text.strip().lower() in {"", *self._rules.unusable} else text

    def _order_id(self, record: Mapping[str, Any]) -> str | None:
        return self._id(record["data"].get("order_id", ""))

    def _refund_id(self, refund: Mapping[str, Any]) -> str | None:
        refund_id = self._id(refund["data"].get("refund_id", ""))
        return None if refund_id is None or refund["key"] == "Order Cancelled" else refund_id.strip()

    def _content(self, refund: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values that two copies of a waiting refund share."""
        return refund["key"], self._refund_id(refund), _amount_of_refund(refund), _value(refund)["currency"]

    def _order_name(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """The identity of an order. Each identity has one attribution."""
        order_id = self._order_id(record)
        return record["tenant"], f"event {record['id']}" if order_id is None else f"order {order_id}"

    def _visitors(self, tenant: str, user: str | None, now: int) -> list[str]:
        """The visitors of the user at this time. Beyond the limit only the ones linked last."""
        found: dict[str, int] = {}
        for link in self._links:
            if link.tenant == tenant:
                newest = max(found.values(), default=0)
                found.pop(link.visitor, None)
                if link.user == user:
                    found[link.visitor] = max(link.at, newest)
                    found = dict([*found.items()][-self._rules.max_visitors :])
        return [visitor for visitor, at in found.items() if now - at <= 400 * DAY]

    def _remembered(self, tenant: str, visitor: str) -> list[_Touch]:
        """The remembered arrivals of a visitor: no old ones, and beyond the limit the first and the newest ones.

        Referrers have a limit of their own.
        """
        found: list[_Touch] = []
        referrers: list[_Touch] = []
        for touch in self._touches:
            since = touch.received - self._rules.window - self._rules.late
            if (touch.tenant, touch.visitor) != (tenant, visitor) or touch.at < since:
                continue
            known = [each for each in found if each.at >= since]
            visit = [each for each in known if each.session == touch.session is not None]
            first = [each for each in referrers if each.at >= since and each.session == touch.session]
            if touch.is_referrer and any(each < touch for each in [*visit, *first]):
                continue
            latest = max((each for each in visit if each < touch), default=None)
            if latest is not None and _is_same_arrival(touch.shown, latest.shown):
                continue
            # This event may have come late, and be the first of that run.
            referrers = [each for each in referrers if each.at >= since and (each not in first or each < touch)]
            if touch.is_referrer:
                referrers = _limited([*referrers, touch], self._rules.max_touches)
                continue
            for following in sorted(each for each in visit if each > touch):
                if not _is_same_arrival(following.shown, touch.shown):
                    break
                known.remove(following)
            found = _limited([*known, touch], self._rules.max_touches)
        return [*found, *referrers]

    def _excluded(self, touch: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        source, medium = ((touch[name] or "").lower() for name in ("source", "medium"))
        hosts = [source, urlsplit(context.get("page", {}).get("referrer", "")).hostname or ""]
        return (
            source in self._rules.exclude_sources
            or medium in self._rules.exclude_mediums
            or any(f".{host}".endswith(f".{domain}") for host in hosts for domain in self._rules.exclude_domains)
        )


def _limited(touches: list[_Touch], most: int) -> list[_Touch]:
    touches = sorted(touches)
    return touches[:1] + touches[1:][-(most - 1) :]


def _order_of(decided: _Decided) -> dict[str, Any]:
    """The members of a reversal that repeat its attribution."""
    return {
        "attributionOf": decided.order["id"],
        "orderId": decided.order["data"]["order_id"],
        "orderEventId": decided.order["id"],
        "orderAt": decided.order["timestamp"],
        "anonymousId": decided.order["anonymousId"],
        "userId": decided.user,
        "touchpoint": decided.touchpoint,
    }


def amount_of(value: Mapping[str, Any]) -> Fraction | None:
    """The amount of a record's `value`: its revenue, or else its total."""
    amount = value["revenue"] if value["revenue"] is not None else value["total"]
    return None if amount is None else Fraction(str(amount))


def _amount_of_refund(refund: Mapping[str, Any]) -> Fraction | None:
    """The amount that a refund asks for, or None for the rest of the order."""
    data = refund["data"]
    if refund["key"] == "Order Cancelled":
        return None
    given = [data.get(name) for name in ("revenue", "total", "value")]
    for value in given:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not _is_too_large(value):
            return abs(Fraction(str(value)))
    items = data.get("products", [])
    worth = sum(
        Fraction(str(item.get("price", 0))) * Fraction(str(item.get("quantity", 1)))
        for item in items
        if not _is_too_large(item.get("price")) and not _is_too_large(item.get("quantity"))
    )
    if not items:
        return Fraction(0) if any(map(_is_too_large, given)) else None
    return abs(Fraction(worth)) if abs(Fraction(worth)) <= MAX_AMOUNT else Fraction(0)


def _is_too_large(value: Any) -> bool:
    return isinstance(value, (int, float)) and not -MAX_AMOUNT <= value <= MAX_AMOUNT


def _value(record: Mapping[str, Any]) -> dict[str, Any]:
    """The members in which two values can differ."""
    data = record["data"]
    currency = data.get("currency", "").strip().upper()
    amounts = {name: None if _is_too_large(data.get(name)) else data.get(name) for name in ("revenue", "total")}
    return {**amounts, "currency": currency or None}


def _currency_as_sent(record: Mapping[str, Any]) -> str | None:
    currency: str = record["data"].get("currency", "")
    return currency if currency.strip() else None


def _moment(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _touchpoint(record: Mapping[str, Any]) -> dict[str, Any] | None:
    context = record["context"]
    campaign = {name: context.get("campaign", {}).get(name, "").strip() for name in FIELDS}
    if not any(campaign.values()):
        query = urlsplit(context.get("page", {}).get("url", "")).query
        parameters = {name.lower(): value.strip() for name, value in reversed(parse_qsl(query))}
        names = ("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content")
        campaign = {name: parameters.get(utm, "") for name, utm in zip(FIELDS, names, strict=True)}
    kind, click, page = "campaign", None, context.get("page", {})
    clicks = [(name.lower(), value) for name, value in parse_qsl(urlsplit(page.get("url", "")).query)]
    if ids := [each for each in clicks if each[0] in CLICKS]:
        click = {"type": ids[0][0], "id": ids[0][1]}
    if not any(campaign.values()):
        named: tuple[str | None, str | None] = None, None
        if click is not None:
            kind, named = "click", CLICKS[click["type"]]
        elif record["dispatchId"] is not None:
            kind = "dispatch"
        elif page.get("referrer") in REFERRERS:
            kind, named = "referrer", REFERRERS[page["referrer"]]
        else:
            return None
        campaign |= {"source": named[0], "medium": named[1]}
    shown = {
        "eventId": record["id"],
        "at": record["timestamp"],
        "anonymousId": record["anonymousId"],
        "sessionId": record["sessionId"],
        **{name: value or None for name, value in campaign.items()},
        "dispatchId": record["dispatchId"],
        "kind": kind,
        "clickId": click,
    }
    return {**shown, "channel": Channels(()).of(shown["source"], shown["medium"], shown["name"])}


def _is_same_arrival(event: Mapping[str, Any], touch: Mapping[str, Any]) -> bool:
    """Whether campaign, click and dispatch of an event, as far as it has them, are those of a touchpoint."""
    mine, theirs = map(_marks, (event, touch))
    return all(each is None or each == other for each, other in zip(mine, theirs, strict=True))


def _marks(shown: Mapping[str, Any]) -> tuple[Any, ...]:
    campaign = [shown[name] for name in FIELDS] if shown["kind"] == "campaign" else None
    return campaign, shown["clickId"], shown["dispatchId"]


def _shares(model: str, ages: Sequence[int], half_life: int) -> list[Fraction]:
    """The exact share of each touch, oldest first."""
    count = len(ages)
    if count <= 1:
        return [Fraction(1)] * count
    middle = [Fraction(0)] * (count - 2)
    if model == "last_touch":
        return [Fraction(0), *middle, Fraction(1)]
    if model == "first_touch":
        return [Fraction(1), *middle, Fraction(0)]
    if model == "position_based" and middle:
        return [Fraction(2, 5), *(Fraction(1, 5) / len(middle) for _ in middle), Fraction(2, 5)]
    if model == "time_decay":
        with localcontext() as context:
            context.prec = 50  # a Decimal can hold shares far below the smallest float
            parts = [Fraction(Decimal(2) ** (Decimal(-age) / half_life)) for age in ages]
        return [part / sum(parts) for part in parts]
    return [Fraction(1, count)] * count
