"""What an order comes to: the records of its attribution and of its reversals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID, uuid5

import msgspec

from ingestd.events import Record
from ingestd.times import format_time

from .journeys import Candidates
from .marks import Mark, Order
from .models import MODELS, Model, weights
from .touches import Touch

__all__ = ["Reason", "attribution_id", "decide", "reverse", "worth"]

_NAMESPACE = UUID("6f1f4e0a-8a7f-5c6b-9a53-0d6b8f7a2c11")
"""Ids of records that are derived come from it and what they are derived from (RFC 9562, version 5)."""

_MAX_IGNORED = 20  # told in a record

Reason = Literal["refund", "cancel"]


def attribution_id(order: Order) -> str:
    """One for each order of a tenant, or, for an event without order id, for each event."""
    if order.order_id is None:
        return str(uuid5(_NAMESPACE, f"event:{order.event_id}"))
    return str(uuid5(_NAMESPACE, f"order:{len(order.tenant)}:{order.tenant}{order.order_id}"))


def worth(revenue: int | float | None, total: int | float | None) -> int | float | None:
    """What an order is worth, and what a refund takes of it: its revenue, or else its total."""
    return revenue if revenue is not None else total


def decide(order: Order, candidates: Candidates, *, model: Model, window: int, half_life: int) -> tuple[Record, Mark]:
    """The attribution of an order, as the record that tells it and the mark that keeps it from being decided again."""
    ages = [order.at - touch.at for touch, _ in candidates.touches]
    ids = [touch.event_id for touch, _ in candidates.touches]
    touchpoints = [_touchpoint(touch, visitor) for touch, visitor in candidates.touches]
    credited = None
    if touchpoints:
        shares = weights(model, ages, half_life)
        # Where several have the most, the newest of them: it is the one nearest to the order.
        credited = touchpoints[max(range(len(shares)), key=lambda index: (shares[index], index))]
    identity = attribution_id(order)
    body = {
        "id": identity,
        "type": "attribution",
        "tenant": order.tenant,
        "decidedAt": format_time(order.received_at),
        "orderId": order.order_id,
        "orderEventId": order.event_id,
        "orderAt": format_time(order.at),
        "anonymousId": order.anonymous_id,
        "userId": order.user_id,
        "model": model,
        "windowSeconds": window // 1000,
        "value": {"revenue": order.revenue, "total": order.total, "currency": order.currency},
        "touchpoint": credited,
        "credits": _credits(ids, ages, half_life),
        "touchpoints": touchpoints,
        "ignored": [
            {"eventId": touch.event_id, "at": format_time(touch.at), "anonymousId": visitor, "reason": reason}
            for touch, visitor, reason in candidates.ignored[-_MAX_IGNORED:]
        ],
        "leftOut": candidates.left_out,
    }
    mark = Mark(
        at=order.received_at,
        position=order.position,
        attribution_id=identity,
        revenue=order.revenue,
        total=order.total,
        currency=order.currency,
        reversed="0",
        is_reversed=False,
        reversals=0,
        touches=[*zip(ids, ages, strict=True)],
        model=model,
        half_life=half_life,
    )
    return Record("attribution", order.received_at, msgspec.json.encode(body)), mark


def reverse(refund: Order, mark: Mark, reason: Reason) -> tuple[Record, Mark] | None:
    """The reversal that a refund or cancellation makes of a decided order; None where nothing is left to reverse."""
    if mark.is_reversed:
        return None
    whole = worth(mark.revenue, mark.total)
    value: dict[str, Any] = {"revenue": None, "total": None, "currency": mark.currency}
    already = Decimal(mark.reversed)
    if whole is not None:
        left = abs(Decimal(str(whole))) - already
        asked = worth(refund.revenue, refund.total) if reason == "refund" else None
        amount = left if asked is None else min(left, abs(Decimal(str(asked))))
        if not amount and left:
            return None
        value["revenue" if mark.revenue is not None else "total"] = _number(amount if whole >= 0 else -amount)
        already += amount
        is_reversed = amount == left
    else:
        is_reversed = True
    ids, ages = [each for each, _ in mark.touches], [age for _, age in mark.touches]
    body = {
        "id": str(uuid5(_NAMESPACE, f"reversal:{refund.event_id}")),
        "type": "attribution_reversal",
        "tenant": refund.tenant,
        "decidedAt": format_time(refund.received_at),
        "attributionId": mark.attribution_id,
        "orderId": refund.order_id,
        "reason": reason,
        "value": value,
        "cause": refund.event_id,
        "model": mark.model,
        "credits": _credits(ids, ages, mark.half_life),
    }
    after = msgspec.structs.replace(mark, reversed=str(already), is_reversed=is_reversed, reversals=mark.reversals + 1)
    return Record("attribution_reversal", refund.received_at, msgspec.json.encode(body)), after


def _credits(ids: Sequence[str], ages: Sequence[int], half_life: int) -> Mapping[str, list[dict[str, Any]]]:
    if not ids:
        return {model: [] for model in MODELS}
    return {
        model: [
            {"eventId": event_id, "weight": weight}
            for event_id, weight in zip(ids, weights(model, ages, half_life), strict=True)
            if weight
        ]
        for model in MODELS
    }


def _touchpoint(touch: Touch, anonymous_id: str) -> dict[str, Any]:
    return {
        "eventId": touch.event_id,
        "at": format_time(touch.at),
        "anonymousId": anonymous_id,
        "sessionId": touch.session_id,
        "source": touch.source,
        "medium": touch.medium,
        "name": touch.name,
        "term": touch.term,
        "content": touch.content,
        "dispatchId": touch.dispatch_id,
    }


def _number(amount: Decimal) -> int | float:
    """As JSON has it: whole ones without a point."""
    return int(amount) if amount == amount.to_integral_value() and abs(amount) < 2**53 else float(amount)
