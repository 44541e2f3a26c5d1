"""The records that an order produces: its attribution and its reversals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID, uuid5

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import format_time

from .amounts import EXACT, decimal, worth
from .campaigns import campaign_digest
from .journeys import MAX_IGNORED, Candidates
from .marks import DecidedOrder, Order, Refund
from .models import MODELS, Model, weights
from .touches import Touch

__all__ = ["MAX_REFUND_IDS", "attribution_id", "decide", "reverse", "supersede"]

_NAMESPACE = UUID("6f1f4e0a-8a7f-5c6b-9a53-0d6b8f7a2c11")
"""The namespace for ids of derived records. Each id is made from the source of the record (RFC 9562, version 5)."""

MAX_REFUND_IDS = 1000
"""Refund ids that the mark of an order keeps. Beyond that, the oldest are dropped."""


def attribution_id(order: Order) -> str:
    """The id of an order's attribution, one for each order of a tenant. Without an order id, one for each event.

    A public key's order and the signed order of the same order id have different ids. So no public order can change
    the attribution of the signed order.
    """
    if order.order_id is None:
        return str(uuid5(_NAMESPACE, f"event:{order.event_id}"))
    kind = "order" if order.signed else "public-order"
    return str(uuid5(_NAMESPACE, f"{kind}:{len(order.tenant)}:{order.tenant}{order.order_id}"))


def decide(
    order: Order, candidates: Candidates, *, model: Model, window: int, half_life: int
) -> tuple[Record, DecidedOrder]:
    """The attribution of an order: the record, and the mark that prevents a second decision."""
    ages = [order.at - touch.at for touch, _ in candidates.touches]
    ids = [touch.event_id for touch, _ in candidates.touches]
    touchpoints = [_touchpoint(touch, visitor) for touch, visitor in candidates.touches]
    credited = None
    if touchpoints:
        shares = weights(model, ages, half_life)
        # Of several touchpoints with the largest share, the newest is credited: it is the nearest to the order.
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
        **({"notCounted": order.not_counted} if order.not_counted else {}),
        "touchpoint": credited,
        "credits": _credits(ids, ages, half_life),
        "touchpoints": touchpoints,
        "ignored": [
            {"eventId": touch.event_id, "at": format_time(touch.at), "anonymousId": visitor, "reason": reason}
            for touch, visitor, reason in candidates.ignored[-MAX_IGNORED:]
        ],
        "leftOut": candidates.left_out,
    }
    mark = DecidedOrder(
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
        signed=order.signed,
        campaigns=[campaign_digest(touch.campaign) for touch, _ in candidates.touches],
    )
    return Record("attribution", order.received_at, msgspec.json.encode(body)), mark


def reverse(refund: Refund, mark: DecidedOrder, decided_at: int) -> tuple[Record, DecidedOrder] | None:
    """The reversal that a refund or cancellation makes of a decided order, and the new mark.

    None if it reverses nothing, because its amount is 0 or nothing is left. `decided_at` is the receipt of the refund
    or of the order, whichever came later.
    """
    if mark.is_reversed:
        return None
    left = _left(mark)
    amount = left if left is None or refund.amount is None else min(left, refund.amount)
    if left and not amount:
        return None
    kind = "public-reversal" if mark.signed is False else "reversal"  # a signed refund may reverse a signed order too
    record = _reversal(f"{kind}:{refund.event_id}", refund, mark, amount, reason=refund.reason, decided_at=decided_at)
    after = mark
    if refund.refund_id is not None:
        name = "refund_ids" if refund.signed else "public_refund_ids"
        refund_ids = [*getattr(mark, name), refund.refund_id][-MAX_REFUND_IDS:]
        after = msgspec.structs.replace(mark, **{name: refund_ids})
    with localcontext(EXACT):
        reversed_ = Decimal(mark.reversed) + (amount or 0)
    after = msgspec.structs.replace(
        after, reversed=str(reversed_), is_reversed=amount == left, reversals=mark.reversals + 1
    )
    return record, after


def supersede(order: Order, mark: DecidedOrder) -> Record:
    """The reversal of a public key's order when the signed order of the same id supersedes it.

    It reverses the rest of the value, which may be nothing. It says that the order no longer counts.
    """
    return _reversal(
        f"superseded:{order.event_id}", order, mark, _left(mark), reason="superseded", decided_at=order.received_at
    )


def _left(mark: DecidedOrder) -> Decimal | None:
    """The part of the order's value that is not reversed, without sign. None if the order has no value."""
    whole = worth(mark.revenue, mark.total)
    if whole is None:
        return None
    with localcontext(EXACT):
        return abs(decimal(whole)) - Decimal(mark.reversed)


def _reversal(
    name: str, cause: Order | Refund, mark: DecidedOrder, amount: Decimal | None, *, reason: str, decided_at: int
) -> Record:
    """The record of a reversal. Its id is made from `name`."""
    value: dict[str, Any] = {"revenue": None, "total": None, "currency": mark.currency}
    whole = worth(mark.revenue, mark.total)
    if whole is not None and amount is not None:
        value["revenue" if mark.revenue is not None else "total"] = _number(amount if whole >= 0 else -amount)
    ids, ages = [each for each, _ in mark.touches], [age for _, age in mark.touches]
    body = {
        "id": str(uuid5(_NAMESPACE, name)),
        "type": "attribution_reversal",
        "tenant": cause.tenant,
        "decidedAt": format_time(decided_at),
        "attributionId": mark.attribution_id,
        "orderId": cause.order_id,
        "reason": reason,
        "value": value,
        "cause": cause.event_id,
        "model": mark.model,
        "credits": _credits(ids, ages, mark.half_life),
    }
    return Record("attribution_reversal", decided_at, msgspec.json.encode(body))


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
    """The number for JSON. Whole numbers have no decimal point."""
    return int(amount) if amount == amount.to_integral_value() and abs(amount) < 2**53 else float(amount)
