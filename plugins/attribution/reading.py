"""Reads records of the journal: touchpoints, links, orders, refunds and erasures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ingestd.api.events import Endpoint, Record
from ingestd.api.times import parse_time
from ingestd.support.json_text import read_float
from ingestd.support.unusable_ids import UnusableIds

from .amounts import amount_of_refund, currency_code, is_ignored, number_of, recorded_currency
from .arrivals import Arrivals
from .marks import Order, Reason, Refund, refund_id_digest
from .touches import Touch, text_of
from .visits import Visits

__all__ = ["Erasure", "Seen", "read"]

_REASONS: Mapping[str | None, Reason] = {"Order Refunded": "refund", "Order Cancelled": "cancel"}
_ORDER_KEYS = {"Order Completed", *_REASONS}


class _Context(msgspec.Struct, gc=False):
    campaign: Any = None
    page: Any = None


class _Envelope(msgspec.Struct, gc=False):
    """The members of an event or identify record that attribution reads. It has no cycles, so `gc` is off."""

    id: str
    tenant: str
    timestamp: str
    anonymousId: str | None  # noqa: N815 - the names are the records', here and below
    userId: str | None  # noqa: N815
    sessionId: str | None  # noqa: N815
    dispatchId: str | None  # noqa: N815
    context: _Context
    key: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"{}")
    endpoint: str = ""
    signed: bool | None = None
    linked: bool | None = None

    @property
    def is_signed(self) -> bool:
        """The record's `signed`. The endpoint decides for a record without it, which an earlier version wrote."""
        return self.endpoint == "customer-events" if self.signed is None else self.signed


class Seen(NamedTuple):
    """An event or identify request that is a touchpoint, is about an order, or links its visitor."""

    tenant: str
    anonymous_id: str
    received_at: int
    touch: Touch | None
    excluded: str | None
    """The reason why the touchpoint does not count, or None."""
    user_id: str | None
    """The user to whom it links the visitor."""
    order: Order | None
    """The order that it completes."""
    refund: Refund | None
    """The refund or cancellation that it makes."""
    amounts_ignored: int
    """The number of its amounts that are too large to count."""


class _Mark(msgspec.Struct, gc=False):
    state: bool = False


class _Imported(msgspec.Struct, gc=False):
    """The members of a record from a file that tell whether and when it counts."""

    receivedAt: str  # noqa: N815
    mark: _Mark = msgspec.field(name="import", default_factory=_Mark)


class Erasure(msgspec.Struct):
    """An erasure record: a user with visitors, or a single visitor, has been forgotten."""

    tenant: str
    userId: str | None  # noqa: N815
    anonymousIds: list[str]  # noqa: N815
    mark: _Mark | None = msgspec.field(name="import", default=None)


class _OrderData(msgspec.Struct, gc=False):
    """Members of an order's `data`. A shop's schema may allow any type, and the order is decided all the same."""

    order_id: Any = None
    revenue: Any = None
    total: Any = None
    currency: Any = None


class _RefundData(_OrderData, gc=False):
    value: Any = None
    products: Any = None
    refund_id: Any = None


_decode_envelope = msgspec.json.Decoder(_Envelope, float_hook=read_float).decode
_decode_imported = msgspec.json.Decoder(_Imported).decode
_decode_erasure = msgspec.json.Decoder(Erasure).decode
_decode_order_data = msgspec.json.Decoder(_OrderData, float_hook=read_float).decode
_decode_refund_data = msgspec.json.Decoder(_RefundData, float_hook=read_float).decode


def read(
    record: Record,
    arrivals: Arrivals,
    unusable_ids: UnusableIds,
    visits: Visits | None = None,
    *,
    with_stateless: bool = False,
) -> Seen | Erasure | None:
    """`visits` are sessions whose further referrers make no touchpoint.

    `with_stateless` asks for events from files too that change no state.
    """
    if record.type not in {"event", "identify"}:
        return _read_erasure(record) if record.type == "erasure" else None
    envelope = _decode_envelope(record.body)
    context = envelope.context
    if (
        record.type == "event"
        and envelope.dispatchId is None
        and context.campaign is None
        and envelope.key not in _ORDER_KEYS
        and envelope.linked is None
        and not arrivals.are_named(context.page)
        and not (_is_first(envelope, record, visits) and arrivals.may_be_referred(context.page))
    ):
        return None  # most events end here
    if envelope.anonymousId is None:  # the person has been forgotten
        return None
    if envelope.endpoint == Endpoint.IMPORT.value:
        imported = _decode_imported(record.body)
        if not (imported.mark.state or with_stateless):
            return None
        record = msgspec.structs.replace(record, at=parse_time(imported.receivedAt) or record.at)
    has_visitor = envelope.anonymousId not in unusable_ids
    dispatch_id = text_of(envelope.dispatchId)
    touch, excluded = None, None
    if has_visitor:
        arrival = arrivals.of(
            context.campaign,
            context.page,
            has_dispatch=dispatch_id is not None,
            is_first=partial(_is_first, envelope, record, visits),
        )
        if arrival is not None and not (arrival.excluded and arrival.named_by == "referrer"):  # pages repeat a referrer
            named_by, click, excluded = arrival.named_by, arrival.click, arrival.excluded
            touch = Touch(
                record.position, _time(envelope, record), envelope.id, envelope.sessionId, *arrival.campaign,
                dispatch_id, named_by, click,
            )  # fmt: skip
    user_id = envelope.userId
    if (
        (record.type == "event" and envelope.linked is None)
        or envelope.linked is False
        # A record without `linked`: an earlier version wrote it, or another plugin keeps links.
        or (envelope.linked is None and user_id is not None and (not has_visitor or user_id in unusable_ids))
    ):
        user_id = None
    order, refund, amounts_ignored = None, None, 0
    if envelope.key == "Order Completed":
        order = _order(envelope, record, unusable_ids)
        amounts_ignored = len(order.not_counted)
    elif (reason := _REASONS.get(envelope.key)) is not None:
        refund, amounts_ignored = _refund(envelope, record, reason, unusable_ids)
    if touch is None and user_id is None and order is None and refund is None:
        return None
    return Seen(
        envelope.tenant, envelope.anonymousId, record.at, touch, excluded,
        user_id, order, refund, amounts_ignored,
    )  # fmt: skip


def _read_erasure(record: Record) -> Erasure | None:
    erasure = _decode_erasure(record.body)
    return erasure if erasure.mark is None or erasure.mark.state else None


def _is_first(envelope: _Envelope, record: Record, visits: Visits | None) -> bool:
    """Whether a touchpoint would be the first of its session, as far as `visits` knows."""
    if envelope.sessionId is None or envelope.anonymousId is None:
        return False
    if visits is None:
        return True
    known = visits.find(envelope.tenant, envelope.anonymousId, envelope.sessionId, record.at)
    return known is None or not (known.is_surely_before(envelope.timestamp) or known.at <= _time(envelope, record))


def _time(envelope: _Envelope, record: Record) -> int:
    """The event's timestamp in milliseconds, or its time of receipt if a plugin stored a text that is not a time."""
    at = parse_time(envelope.timestamp)
    return record.at if at is None else at


def _order(envelope: _Envelope, record: Record, unusable_ids: UnusableIds) -> Order:
    assert envelope.anonymousId is not None
    data = _decode_order_data(envelope.data)
    return Order(
        tenant=envelope.tenant,
        event_id=envelope.id,
        position=record.position,
        at=_time(envelope, record),
        received_at=record.at,
        order_id=_id(data.order_id, unusable_ids),
        anonymous_id=envelope.anonymousId,
        user_id=envelope.userId,
        revenue=number_of(data.revenue),
        total=number_of(data.total),
        currency=recorded_currency(_text(data.currency)),
        signed=envelope.is_signed,
        not_counted=tuple(name for name in ("revenue", "total") if is_ignored(getattr(data, name))),
    )


def _refund(envelope: _Envelope, record: Record, reason: Reason, unusable_ids: UnusableIds) -> tuple[Refund, int]:
    """The refund, and the number of its amounts that are too large to count."""
    data = _decode_refund_data(envelope.data)
    amount, refund_id, ignored = None, None, 0
    if reason == "refund":  # a cancellation reverses the rest of the order, whatever amounts it repeats
        amounts = data.revenue, data.total, data.value
        amount = amount_of_refund(amounts, data.products)
        ignored = sum(map(is_ignored, amounts))
        refund_id = _id(data.refund_id, unusable_ids)
    refund = Refund(
        tenant=envelope.tenant,
        order_id=_id(data.order_id, unusable_ids),
        event_id=envelope.id,
        received_at=record.at,
        reason=reason,
        amount=amount,
        currency=currency_code(_text(data.currency)),
        refund_id=None if refund_id is None else refund_id_digest(refund_id.strip()),
        signed=envelope.is_signed,
    )
    return refund, ignored


def _id(value: Any, unusable_ids: UnusableIds) -> str | None:
    """The id as sent. None if it is blank or unusable, such as a word that clients write for no value."""
    text = _text(value)
    return text if text is not None and text not in unusable_ids else None


def _text(value: Any) -> str | None:
    """A text that is not blank, as sent, or a whole number as text. None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else None
