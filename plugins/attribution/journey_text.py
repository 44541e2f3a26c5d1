"""The journey of an order as lines of text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingestd.api.times import format_time
from ingestd.support.terminal import printable

from .journey_words import IGNORED, KINDS, WHY, age_before, campaign, device, devices, money, value_of, weight_of
from .marks import Refund
from .models import MODELS
from .record_size import texts_of
from .untrusted import Untrusted

__all__ = ["ignored", "ignored_one", "journey", "reversal_line", "waiting_one"]


def journey(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for an attribution and its reversals."""
    for record in records:
        lines = _attribution(record) if record["type"] == "attribution" else [f"  {reversal_line(record)}"]
        yield from map(printable, lines)


def reversal_line(record: Mapping[str, Any]) -> str:
    value = value_of(record["value"])
    if record["reason"] == "superseded":
        return f"superseded at {record['decidedAt']} by the signed order {record['cause']}: {value} reversed"
    return f"{record['reason']} at {record['decidedAt']}: {value} reversed, because of {record['cause']}"


def waiting_one(tenant: str, refund: Refund) -> str:
    asked = "the rest of the order" if refund.amount is None else money(refund.amount, refund.currency)
    return (
        f"the {KINDS[refund.reason]} {refund.event_id} of {tenant} waits for its order:"
        f" {asked}, received {format_time(refund.received_at)}"
    )


def ignored(untrusted: Sequence[Untrusted]) -> Iterator[str]:
    """Lines for records of an order that were ignored because public keys sent them."""
    if untrusted:
        yield "  ignored:"
    for each in untrusted:
        yield printable(f"    {ignored_one(each)}")


def ignored_one(untrusted: Untrusted) -> str:
    why = "a public key sent too many" if untrusted.is_excess else "a public key sent it"
    return (
        f"the {KINDS[untrusted.kind]} {untrusted.event_id}, received {format_time(untrusted.received_at)},"
        f" is ignored: {why}"
    )


def _attribution(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"order {record['orderId'] or 'without id'} of {record['tenant']}: {value_of(record['value'])}"
    yield f"  attribution  {record['id']}"
    yield f"  order event  {record['orderEventId']}, received {record['decidedAt']}"
    for name in record.get("notCounted", ()):
        yield f"  not counted  its {name}, which is over 10^12"
    yield f"  visitor      {record['anonymousId'] or 'forgotten'}"
    yield f"  user         {record['userId'] or ('forgotten' if record.get('erased') else 'none')}"
    touchpoints = record["touchpoints"]
    visitors = devices(record)
    days = record["windowSeconds"] / 86400
    if not touchpoints:
        yield f"  no touchpoint in the {days:g} days before it: direct"
    else:
        yield f"  touchpoints in the {days:g} days before it, oldest first:"
    for each, (event_id, texts) in zip(touchpoints, texts_of(record), strict=True):
        mark = "→" if event_id == record["touchpoint"]["eventId"] else " "
        name = "not in the record" if texts is None else campaign(texts)
        before = f"{age_before(record, each['at']):>8} before  " if "at" in each else " " * 17
        yield f"  {mark} {before}{name}{_device(each, visitors)}"
        shares = ", ".join(
            f"{model} {weight:.0%}"
            for model in MODELS
            if (weight := weight_of(record["credits"][model], each["eventId"]))
        )
        yield f"      {shares or 'no share in any model'}"
    if record.get("shortened"):
        yield f"    {record['shortened']} of them are in a short form, because the record would be too large"
    if record["leftOut"]:
        yield f"    {record['leftOut']} more between the first and these are beyond the limit"
    if record["touchpoint"] is not None:
        yield f"  → credited by {record['model']}: {WHY[record['model']]}"
    if record["ignored"]:
        yield "  not counted:"
    for each in record["ignored"]:
        yield f"    {each['at']}  event {each['eventId']}: {IGNORED[each['reason']]}"


def _device(touchpoint: Mapping[str, Any], visitors: Sequence[str | None]) -> str:
    return f"  ({device(touchpoint, visitors)})" if "anonymousId" in touchpoint else ""
