"""The explanation of an order: `ingestd attribution show` prints it as text, and the operators' page shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from ingestd.api.journeys import JourneyFact
from ingestd.api.times import format_time, parse_time
from ingestd.support.terminal import printable

from ..sources import Channels
from .amounts import MAX_AMOUNT, worth
from .marks import Refund
from .models import MODELS, Model
from .record_size import texts_of
from .untrusted import Untrusted

__all__ = ["EXCLUDED", "KINDS", "Explanation", "age_text", "explain_order", "ignored", "money", "text_lines", "waiting"]

KINDS = {"order": "order", "refund": "refund", "cancel": "cancellation"}
EXCLUDED = {
    "before_window": "older than the window",
    "after_order": "later than the order",
    "excluded_source": "its source is excluded",
    "excluded_medium": "its medium is excluded",
    "excluded_domain": "it came from one of the shop's own domains",
}
"""Why a touchpoint does not count."""

_CREDITED = {
    "last_touch": "it is the last one before the order",
    "first_touch": "it is the first one in the window",
    "linear": "all have the same share; it is the newest",
    "position_based": "the first and the last have the largest shares; it is the newer of the two",
    "time_decay": "the nearer to the order, the larger the share",
}
"""Why a model credits a touchpoint."""


_UNCREDITED = "no share: a referrer has one only if no campaign, click or dispatch counts"


class ExplainedTouchpoint(NamedTuple):
    texts: Mapping[str, Any] | None
    """Its campaign as recorded. None if the record has no room for it."""
    channel: str
    """As recorded, or by the present rules if an earlier version decided the order. Empty without `texts`."""
    age: str
    """Before the order; the same for the device. Empty if the record has no room for it."""
    device: str
    is_credited: bool
    weights: Mapping[Model, float]


class Explanation(NamedTuple):
    """What the record of an attribution and its reversals say to people."""

    tenant: str
    value: str
    facts: Sequence[JourneyFact]
    """The order comes first."""
    window: str
    touchpoints: Sequence[ExplainedTouchpoint]
    notes: Sequence[str]
    """Without a capital and a full stop."""


def explain_order(record: Mapping[str, Any], reversals: Sequence[Mapping[str, Any]], channels: Channels) -> Explanation:
    window = f"{record['windowSeconds'] / 86400:g} days"
    return Explanation(
        record["tenant"],
        _value(record["value"]),
        [*_facts(record)],
        window,
        [*_touchpoints(record, channels)],
        [*_notes(record, window), *map(_reversal, reversals)],
    )


def text_lines(explained: Explanation) -> Iterator[str]:
    """The explanation for a terminal."""
    order, *facts = explained.facts
    yield f"order {printable(order.value or '')} of {explained.tenant}: {printable(explained.value)}"
    for fact in facts:
        yield f"  {fact.name.lower():<12} {printable(fact.value or '')}"
    if explained.touchpoints:
        yield f"  touchpoints in the {explained.window} before it, oldest first:"
    for each in explained.touchpoints:
        age = f"{each.age:>8} before  " if each.age else " " * 17
        device = f"  ({each.device})" if each.device else ""
        yield printable(f"  {'→' if each.is_credited else ' '} {age}{_campaign(each)}{device}")
        shares = ", ".join(f"{model} {weight:.0%}" for model, weight in each.weights.items() if weight)
        yield f"      {shares or _UNCREDITED}"
    for note in explained.notes:
        yield f"  {printable(note)}"


def waiting(tenant: str, refund: Refund) -> str:
    asked = "the rest of the order" if refund.amount is None else money(refund.amount, refund.currency)
    return (
        f"the {KINDS[refund.reason]} {refund.event_id} of {tenant} waits for its order:"
        f" {asked}, received {format_time(refund.received_at)}"
    )


def ignored(untrusted: Untrusted) -> str:
    why = "a public key sent too many" if untrusted.is_excess else "a public key sent it"
    return (
        f"the {KINDS[untrusted.kind]} {untrusted.event_id}, received {format_time(untrusted.received_at)},"
        f" is ignored: {why}"
    )


def age_text(age: int) -> str:
    """An age in milliseconds, in the largest unit."""
    seconds = age / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def money(amount: float | str | Decimal | None, currency: str | None) -> str:
    """The amount with its currency. A part of a unit has at least two decimals."""
    if amount is None:
        return "no value"
    exact = Decimal(str(amount))
    in_cents = exact != exact.to_integral_value() and abs(exact) <= MAX_AMOUNT and exact == round(exact, 2)
    return f"{exact:.2f} {currency or ''}".rstrip() if in_cents else f"{amount} {currency or ''}".rstrip()


def _value(value: Mapping[str, Any]) -> str:
    return money(worth(value["revenue"], value["total"]), value["currency"])


def _facts(record: Mapping[str, Any]) -> Iterator[JourneyFact]:
    yield _fact("order", record["orderId"], "without id")
    yield JourneyFact("Attribution", record["id"])
    yield JourneyFact("Order event", record["orderEventId"])
    yield JourneyFact("Received", record["decidedAt"])
    for name in record.get("notCounted", ()):
        yield JourneyFact("Not counted", f"its {name}, which is over 10^12")
    yield _fact("visitor", record["anonymousId"], "forgotten")
    yield _fact("user", record["userId"], "forgotten" if record.get("erased") else "none")


def _fact(names: Any, value: str | None, otherwise: str) -> JourneyFact:
    """An id of a caller, or a word if there is none."""
    return JourneyFact(names.capitalize(), value or otherwise, names if value else None)


def _touchpoints(record: Mapping[str, Any], channels: Channels) -> Iterator[ExplainedTouchpoint]:
    order_at = parse_time(record["orderAt"])
    assert order_at is not None
    visitors = (each["anonymousId"] for each in record["touchpoints"] if "anonymousId" in each)
    devices = [*dict.fromkeys([record["anonymousId"], *visitors])]
    for each, (event_id, texts) in zip(record["touchpoints"], texts_of(record), strict=True):
        at = parse_time(each["at"]) if "at" in each else None
        yield ExplainedTouchpoint(
            texts,
            "" if texts is None else channels.of_texts(texts),
            "" if at is None else age_text(order_at - at),
            _device(each["anonymousId"], devices) if "anonymousId" in each else "",
            event_id == record["touchpoint"]["eventId"],
            {model: _weight(record["credits"][model], event_id) for model in MODELS},
        )


def _device(visitor: str | None, devices: Sequence[str | None]) -> str:
    """The device of the order is the first."""
    if visitor is None:
        return "a device that has been forgotten"
    index = devices.index(visitor)
    return f"device {index + 1}" if index else "this device"


def _weight(shares: Sequence[Mapping[str, Any]], event_id: str) -> float:
    return float(next((share["weight"] for share in shares if share["eventId"] == event_id), 0.0))


def _campaign(touchpoint: ExplainedTouchpoint) -> str:
    texts = touchpoint.texts
    if texts is None:
        return "not in the record"
    parts = [texts[name] for name in ("source", "medium", "name", "term", "content") if texts[name]]
    if texts["dispatchId"]:
        parts.append(f"dispatch {texts['dispatchId']}")
    if click := texts.get("clickId"):
        parts.append(f"click {click['type']}")
    if texts["kind"] == "referrer":
        parts.append("referrer")
    return f"{' / '.join(parts) or 'a dispatch without its id'} [{touchpoint.channel}]"


def _notes(record: Mapping[str, Any], window: str) -> Iterator[str]:
    if not record["touchpoints"]:
        yield f"no touchpoint in the {window} before it: direct"
    if record.get("shortened"):
        yield f"{record['shortened']} of them are in a short form, because the record would be too large"
    if record["leftOut"]:
        yield f"{record['leftOut']} more between the first and these are beyond the limit"
    if record["touchpoint"] is not None:
        yield f"credited by {record['model']}: {_CREDITED[record['model']]}"
    for each in record["ignored"]:
        yield f"event {each['eventId']} of {each['at']} does not count: {EXCLUDED[each['reason']]}"


def _reversal(record: Mapping[str, Any]) -> str:
    value = _value(record["value"])
    if record["reason"] == "superseded":
        return f"superseded at {record['decidedAt']} by the signed order {record['cause']}: {value} reversed"
    return f"{record['reason']} at {record['decidedAt']}: {value} reversed, because of {record['cause']}"
