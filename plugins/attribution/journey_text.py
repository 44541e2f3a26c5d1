"""The journey of an order as lines of text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingestd.api.terminal import printable
from ingestd.api.times import format_time, parse_time

from .amounts import worth
from .models import MODELS
from .untrusted import Untrusted

__all__ = ["ignored", "ignored_one", "journey"]

_WHY = {
    "last_touch": "it is the last one before the order",
    "first_touch": "it is the first one in the window",
    "linear": "all have the same share; it is the newest",
    "position_based": "the first and the last have the largest shares; it is the newer of the two",
    "time_decay": "the nearer to the order, the larger the share",
}
_KINDS = {"order": "order", "refund": "refund", "cancel": "cancellation"}
_IGNORED = {
    "before_window": "older than the window",
    "after_order": "later than the order",
    "excluded_source": "its source is excluded",
    "excluded_medium": "its medium is excluded",
    "excluded_domain": "it came from one of the shop's own domains",
}


def journey(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for an attribution and its reversals."""
    for record in records:
        for line in _attribution(record) if record["type"] == "attribution" else _reversal(record):
            yield printable(line)


def _reversal(record: Mapping[str, Any]) -> Iterator[str]:
    value = _value(record["value"])
    if record["reason"] == "superseded":
        yield f"  superseded at {record['decidedAt']} by the signed order {record['cause']}: {value} reversed"
    else:
        yield f"  {record['reason']} at {record['decidedAt']}: {value} reversed, because of {record['cause']}"


def ignored(untrusted: Sequence[Untrusted]) -> Iterator[str]:
    """Lines for records of an order that were ignored because public keys sent them."""
    if untrusted:
        yield "  ignored:"
    for each in untrusted:
        yield printable(f"    {ignored_one(each)}")


def ignored_one(untrusted: Untrusted) -> str:
    return (
        f"the {_KINDS[untrusted.kind]} {untrusted.event_id}, received {format_time(untrusted.received_at)},"
        " is ignored: a public key sent it"
    )


def _attribution(record: Mapping[str, Any]) -> Iterator[str]:
    order_at = _order_at(record)
    yield f"order {record['orderId'] or 'without id'} of {record['tenant']}: {_value(record['value'])}"
    yield f"  attribution  {record['id']}"
    yield f"  order event  {record['orderEventId']}, received {record['decidedAt']}"
    for name in record.get("notCounted", ()):
        yield f"  not counted  its {name}, which is over 10^12"
    yield f"  visitor      {record['anonymousId'] or 'forgotten'}"
    yield f"  user         {record['userId'] or ('forgotten' if record.get('erased') else 'none')}"
    touchpoints = record["touchpoints"]
    visitors = list(dict.fromkeys([record["anonymousId"], *(each["anonymousId"] for each in touchpoints)]))
    days = record["windowSeconds"] / 86400
    if not touchpoints:
        yield f"  no touchpoint in the {days:g} days before it: direct"
    else:
        yield f"  touchpoints in the {days:g} days before it, oldest first:"
    for each in touchpoints:
        device = _device(each, visitors)
        mark = "→" if each == record["touchpoint"] else " "
        yield f"  {mark} {_age(order_at, each['at']):>8} before  {_campaign(each)}  ({device})"
        shares = ", ".join(
            f"{model} {weight:.0%}"
            for model in MODELS
            if (weight := _weight(record["credits"][model], each["eventId"]))
        )
        yield f"      {shares or 'no share in any model'}"
    if record["leftOut"]:
        yield f"    {record['leftOut']} more between the first and these are beyond the limit"
    if record["touchpoint"] is not None:
        yield f"  → credited by {record['model']}: {_WHY[record['model']]}"
    if record["ignored"]:
        yield "  not counted:"
    for each in record["ignored"]:
        yield f"    {each['at']}  event {each['eventId']}: {_IGNORED[each['reason']]}"


def _order_at(record: Mapping[str, Any]) -> int:
    at = parse_time(record["orderAt"])
    assert at is not None
    return at


def _device(touchpoint: Mapping[str, Any], visitors: Sequence[str | None]) -> str:
    """`visitors` begins with the visitor of the order."""
    if touchpoint["anonymousId"] is None:
        return "a device that has been forgotten"
    index = visitors.index(touchpoint["anonymousId"])
    return f"device {index + 1}" if index else "this device"


def _weight(shares: Sequence[Mapping[str, Any]], event_id: str) -> float:
    return float(next((share["weight"] for share in shares if share["eventId"] == event_id), 0.0))


def _campaign(touchpoint: Mapping[str, Any]) -> str:
    parts = [touchpoint[name] for name in ("source", "medium", "name", "term", "content") if touchpoint[name]]
    if touchpoint["dispatchId"]:
        parts.append(f"dispatch {touchpoint['dispatchId']}")
    return " / ".join(parts) or "a dispatch that has been forgotten"


def _age(order_at: int, at: str) -> str:
    moment = parse_time(at)
    assert moment is not None
    seconds = (order_at - moment) / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _value(value: Mapping[str, Any]) -> str:
    amount = worth(value["revenue"], value["total"])
    return "no value" if amount is None else f"{amount} {value['currency'] or ''}".rstrip()
