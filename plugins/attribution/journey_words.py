"""Words for the parts of a journey. `ingestd attribution show` and the operators' page share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ingestd.api.times import parse_time

from .amounts import MAX_AMOUNT, worth

__all__ = [
    "IGNORED",
    "KINDS",
    "WHY",
    "age_before",
    "age_text",
    "campaign",
    "device",
    "devices",
    "money",
    "value_of",
    "weight_of",
]

WHY = {
    "last_touch": "it is the last one before the order",
    "first_touch": "it is the first one in the window",
    "linear": "all have the same share; it is the newest",
    "position_based": "the first and the last have the largest shares; it is the newer of the two",
    "time_decay": "the nearer to the order, the larger the share",
}
"""Why a model credits a touchpoint."""

KINDS = {"order": "order", "refund": "refund", "cancel": "cancellation"}
IGNORED = {
    "before_window": "older than the window",
    "after_order": "later than the order",
    "excluded_source": "its source is excluded",
    "excluded_medium": "its medium is excluded",
    "excluded_domain": "it came from one of the shop's own domains",
}


def devices(record: Mapping[str, Any]) -> list[str | None]:
    """The visitors of an attribution, for `device`. The visitor of the order is the first."""
    visitors = (each["anonymousId"] for each in record["touchpoints"] if "anonymousId" in each)
    return list(dict.fromkeys([record["anonymousId"], *visitors]))


def device(touchpoint: Mapping[str, Any], visitors: Sequence[str | None]) -> str:
    if touchpoint["anonymousId"] is None:
        return "a device that has been forgotten"
    index = visitors.index(touchpoint["anonymousId"])
    return f"device {index + 1}" if index else "this device"


def weight_of(shares: Sequence[Mapping[str, Any]], event_id: str) -> float:
    return float(next((share["weight"] for share in shares if share["eventId"] == event_id), 0.0))


def campaign(touchpoint: Mapping[str, Any]) -> str:
    parts = [touchpoint[name] for name in ("source", "medium", "name", "term", "content") if touchpoint[name]]
    if touchpoint["dispatchId"]:
        parts.append(f"dispatch {touchpoint['dispatchId']}")
    return " / ".join(parts) or "a dispatch that has been forgotten"


def age_before(record: Mapping[str, Any], at: str) -> str:
    """The time between a moment and the order of an attribution."""
    order_at, moment = parse_time(record["orderAt"]), parse_time(at)
    assert order_at is not None
    assert moment is not None
    return age_text(order_at - moment)


def age_text(age: int) -> str:
    """An age in milliseconds, in the largest unit."""
    seconds = age / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def value_of(value: Mapping[str, Any]) -> str:
    amount = worth(value["revenue"], value["total"])
    return "no value" if amount is None else money(amount, value["currency"])


def money(amount: float | str | Decimal, currency: str | None) -> str:
    """The amount with its currency. A part of a unit has at least two decimals."""
    exact = Decimal(str(amount))
    in_cents = exact != exact.to_integral_value() and abs(exact) <= MAX_AMOUNT and exact == round(exact, 2)
    return f"{exact:.2f} {currency or ''}".rstrip() if in_cents else f"{amount} {currency or ''}".rstrip()
