"""The records that an order produces: its attribution and its reversals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import format_time

from ..sources import Channels
from .amounts import EXACT, decimal, worth
from .campaigns import campaign_digest
from .journeys import MAX_IGNORED, Candidates
from .marks import DecidedOrder, Order, Refund
from .models import MODELS, Model, weights
from .people import Whom
from .record_size import (
    MAX_ATTRIBUTION,
    MAX_NAMED,
    MAX_PUBLIC_REVERSAL,
    MAX_REVERSAL,
    bounded,
    encode,
    fitting,
    recorded_id,
    user_id,
)
from .touches import Touch

__all__ = ["MAX_PUBLIC_REVERSALS", "MAX_REFUND_IDS", "Decision", "attribution_id", "decide", "reverse", "supersede"]

_NAMESPACE = UUID("6f1f4e0a-8a7f-5c6b-9a53-0d6b8f7a2c11")
"""The namespace for ids of derived records. Each id is made from the source of the record (RFC 9562, version 5)."""

MAX_REFUND_IDS = 1000
"""Refund ids that the mark of an order keeps. Beyond that, the oldest are dropped."""

MAX_PUBLIC_REVERSALS = 100
"""Reversals of an order that public keys can cause. Each is a record, and a stranger can refund a cent at a time."""


class Decision(NamedTuple):
    record: Record
    mark: DecidedOrder
    touchpoint: Mapping[str, Any] | None
    """The credited touchpoint, with all its members. None for a direct order."""


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
    order: Order, candidates: Candidates, channels: Channels, *, model: Model, window: int, half_life: int
) -> Decision:
    """The attribution of an order: the record, and the mark that prevents a second decision.

    Should even the short form of the record be too large, touchpoints between the first and the newest do not count.
    """
    decision = _decide(order, candidates, channels, model, window=window, half_life=half_life)
    while len(decision.record.body) > MAX_ATTRIBUTION and (most := len(candidates.touches) * 9 // 10):
        candidates = candidates.keeping(most)
        decision = _decide(order, candidates, channels, model, window=window, half_life=half_life)
    return decision


def _decide(
    order: Order, candidates: Candidates, channels: Channels, model: Model, *, window: int, half_life: int
) -> Decision:
    counted = [candidates.touches[index][0] for index in candidates.credited]
    ages, ids = [order.at - touch.at for touch in counted], [touch.event_id for touch in counted]
    touchpoints = [_touchpoint(touch, visitor, channels) for touch, visitor in candidates.touches]
    credited, shares = None, [0.0] * len(touchpoints)
    if touchpoints:
        for index, share in zip(candidates.credited, weights(model, ages, half_life), strict=True):
            shares[index] = share
        # Of several touchpoints with the largest share, the newest is credited: it is the nearest to the order.
        credited = touchpoints[max(range(len(shares)), key=lambda index: (shares[index], index))]
    identity = attribution_id(order)
    body = {
        "id": identity,
        "type": "attribution",
        "tenant": order.tenant,
        "decidedAt": format_time(order.received_at),
        "orderId": recorded_id(order.order_id),
        "orderEventId": order.event_id,
        "orderAt": format_time(order.at),
        "anonymousId": order.anonymous_id,
        "userId": user_id(order.user_id),
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
        touches=[*zip(_named(ids), ages, strict=True)],
        model=model,
        half_life=half_life,
        signed=order.signed,
        campaigns=[campaign_digest(touch.campaign) for touch in counted],
        event_id=order.event_id,
        order_at=order.at,
    )
    return Decision(Record("attribution", order.received_at, fitting(body, shares)), mark, credited)


def _named(ids: Sequence[str]) -> Sequence[str]:
    return ids if len(ids) <= MAX_NAMED else [ids[0], *[""] * (len(ids) - 2), ids[-1]]


def reverse(refund: Refund, mark: DecidedOrder, whom: Whom) -> tuple[Record, DecidedOrder] | None:
    """The reversal that a refund or cancellation makes of a decided order, and the new mark.

    None if it reverses nothing, because its amount is 0 or nothing is left.
    """
    if mark.is_reversed:
        return None
    left = _left(mark)
    amount = left if left is None or refund.amount is None else min(left, refund.amount)
    if left and not amount:
        return None
    kind = "public-reversal" if mark.signed is False else "reversal"  # a signed refund may reverse a signed order too
    name = f"{kind}:{refund.event_id}"
    record = _reversal(name, refund, mark, whom, amount, reason=refund.reason)
    after = mark
    if refund.refund_id is not None:
        kept = "refund_ids" if refund.signed else "public_refund_ids"
        after = msgspec.structs.replace(mark, **{kept: [*getattr(mark, kept), refund.refund_id][-MAX_REFUND_IDS:]})
    with localcontext(EXACT):
        reversed_ = Decimal(mark.reversed) + (amount or 0)
    after = msgspec.structs.replace(
        after,
        reversed=str(reversed_),
        is_reversed=amount == left,
        reversals=mark.reversals + 1,
        public_reversals=mark.public_reversals + (not refund.signed),
    )
    return record, after


def supersede(order: Order, mark: DecidedOrder, whom: Whom) -> Record:
    """The reversal of a public key's order when the signed order of the same id supersedes it.

    It reverses the rest of the value, which may be nothing. It says that the order no longer counts.
    """
    name = f"superseded:{order.event_id}"
    return _reversal(name, order, mark, whom, _left(mark), reason="superseded")


def _left(mark: DecidedOrder) -> Decimal | None:
    """The part of the order's value that is not reversed, without sign. None if the order has no value."""
    whole = worth(mark.revenue, mark.total)
    if whole is None:
        return None
    with localcontext(EXACT):
        return abs(decimal(whole)) - Decimal(mark.reversed)


def _reversal(
    name: str,
    cause: Order | Refund,
    mark: DecidedOrder,
    whom: Whom,
    amount: Decimal | None,
    *,
    reason: str,
) -> Record:
    """The record of a reversal. Its id is made from `name`.

    Files may have a refund that was received before its order, or was stored after it. No reversal is older than its
    attribution.
    """
    decided_at = max(cause.received_at, mark.at)
    value: dict[str, Any] = {"revenue": None, "total": None, "currency": mark.currency}
    whole = worth(mark.revenue, mark.total)
    if whole is not None and amount is not None:
        value["revenue" if mark.revenue is not None else "total"] = _number(amount if whole >= 0 else -amount)
    ids, ages = _named([each for each, _ in mark.touches]), [age for _, age in mark.touches]
    credits_ = _credits(ids, ages, mark.half_life)
    body = {
        "id": str(uuid5(_NAMESPACE, name)),
        "type": "attribution_reversal",
        "tenant": cause.tenant,
        "decidedAt": format_time(decided_at),
        "attributionId": mark.attribution_id,
        "orderId": recorded_id(cause.order_id),
        "orderEventId": mark.event_id,
        "orderAt": None if mark.order_at is None else format_time(mark.order_at),
        "anonymousId": whom.anonymous_id,
        "userId": whom.user_id,
        "reason": reason,
        "value": value,
        "cause": cause.event_id,
        "model": mark.model,
        "touchpoint": whom.touchpoint,
        "credits": credits_ if len(ids) <= MAX_NAMED else _only_short(credits_),
        **({"erased": True} if whom.is_forgotten else {}),
    }
    most = MAX_REVERSAL if cause.signed else MAX_PUBLIC_REVERSAL
    if len(encode(body)) > most:
        body["credits"] = _only_short(credits_)
    if (excess := len(encode(body)) - most) > 0 and whom.touchpoint is not None:
        body["touchpoint"] = bounded(whom.touchpoint, len(encode(whom.touchpoint)) - excess)
    if len(encode(body)) > most:
        body["anonymousId"] = None
    return Record("attribution_reversal", decided_at, encode(body))


def _only_short(credits_: Mapping[str, list[dict[str, Any]]]) -> Mapping[str, list[dict[str, Any]] | None]:
    """The credits of models with one touchpoint. Of the others the attribution has the credits."""
    return {model: each if len(each) <= 1 else None for model, each in credits_.items()}


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


def _touchpoint(touch: Touch, anonymous_id: str, channels: Channels) -> dict[str, Any]:
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
        "kind": touch.kind,
        "channel": channels.of(touch.source, touch.medium, touch.name),
        "clickId": touch.click and touch.click._asdict(),
    }


def _number(amount: Decimal) -> int | float:
    """The number for JSON. Whole numbers have no decimal point."""
    return int(amount) if amount == amount.to_integral_value() and abs(amount) < 2**53 else float(amount)
