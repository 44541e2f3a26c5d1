"""Orders and refunds of the journal, and the marks of decided orders. An order with a mark is not decided again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from hashlib import blake2b
from typing import Literal

import msgspec

from ingestd.api.store import State, StoredValue, state_key

from .amounts import currency_code
from .models import Model

__all__ = [
    "TENANTS",
    "DecidedOrder",
    "Marks",
    "Order",
    "Reason",
    "Refund",
    "entry_life",
    "mark_key",
    "refund_id_digest",
    "remember_tenant",
]

Reason = Literal["refund", "cancel"]

TENANTS = "attribution-tenant"
"""The kind of entries that name the tenants with decided orders or waiting refunds."""

_MARGIN = 30 * 86_400_000
"""Marks stay this much longer than they count: the clock ends their life, but the journal decides what counts."""


class Order(msgspec.Struct, frozen=True):
    """An `Order Completed` in the journal. Times are in milliseconds."""

    tenant: str
    event_id: str
    position: int
    at: int
    received_at: int
    order_id: str | None
    anonymous_id: str
    user_id: str | None
    revenue: int | float | None
    total: int | float | None
    currency: str | None
    signed: bool = False
    not_counted: tuple[str, ...] = ()
    """Names of the amounts that are too large to count."""


class Refund(msgspec.Struct, frozen=True, array_like=True):
    """An `Order Refunded` or `Order Cancelled` in the journal. Times are in milliseconds.

    It holds no personal data. A waiting refund is stored, so a later version may only append members with defaults.
    """

    tenant: str
    order_id: str | None
    event_id: str
    received_at: int
    reason: Reason
    amount: Decimal | None
    """The amount to reverse, never negative. None stands for the rest of the order."""
    currency: str | None
    """The result of `currency_code`."""
    refund_id: str | None
    """The result of `refund_id_digest`."""
    signed: bool = False
    is_applied: bool = False
    """Whether it was applied to an order of a public key. It still waits for a signed order to supersede that one."""

    def repeats(self, other: Refund) -> bool:
        """Whether this refund is the other one, sent again under the same refund id."""
        content = (self.refund_id, self.reason, self.amount, self.currency)
        return self.refund_id is not None and content == (other.refund_id, other.reason, other.amount, other.currency)


def refund_id_digest(refund_id: str) -> str:
    """A digest of a refund id in 16 characters. Callers choose the id's length, and a mark keeps many of them."""
    return blake2b(refund_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class DecidedOrder(msgspec.Struct, array_like=True):
    """The mark of a decided order, for repeats and reversals. It may stay longer than the order's journal records.

    It holds no personal data.
    """

    at: int
    """The time of the order's receipt."""
    position: int
    attribution_id: str
    revenue: int | float | None
    total: int | float | None
    currency: str | None
    reversed: str
    """The reversed part of the order's value, as a decimal."""
    is_reversed: bool
    """Whether the whole value is reversed."""
    reversals: int
    """The number of reversals."""
    touches: list[tuple[str, int]]
    """The event id of each touchpoint and its age at the order, oldest first.

    Of many touchpoints, only the first and the last have an id. The ids of the others are empty.
    """
    model: Model
    half_life: int
    refund_ids: list[str] = []
    """Digests of the refund ids of signed refunds that reversed something, the oldest first. Their number is bounded.

    Refund ids of public keys have a separate list. A stranger who guesses a refund id must not block the shop's refund.
    """
    signed: bool | None = None
    """Whether the order was signed. None if an earlier version decided it, which did not record this."""
    public_refund_ids: list[str] = []
    """The same as `refund_ids`, for refunds of public keys."""
    superseded: tuple[int, int] | None = None
    """The position of the public key's order that this order superseded, and the number of records derived from it."""
    campaigns: list[int] | None = None
    """The digest of each touchpoint's campaign, 0 if rollups count it among others. None if an earlier version decided
    the order."""
    event_id: str | None = None
    """The id of the order's event. None if an earlier version decided the order; the same below."""
    order_at: int | None = None
    """The time of the order."""
    person: tuple[str, str | None] | None = None
    """References to the ids of the visitor and of the user, if there is one. `People` keeps the ids."""
    credited: tuple[str, str] | None = None
    """The event id of the credited touchpoint, and the digest of its visitor. None for a direct order."""
    public_reversals: int = 0
    """The number of reversals of public keys."""
    superseded_at: int = 0
    """The time of receipt of the superseded order. It may be later than `at`, if a clock was set back."""

    @property
    def first(self) -> int:
        """The position of the first order with this id. The records derived from it come behind."""
        return self.superseded[0] if self.superseded else self.position

    @property
    def remembered_from(self) -> int:
        """The time from which the order's memory counts: the latest receipt of an order with this id that was decided.

        Otherwise a signed order with an old time would make ingestd forget an id, and decide it again.
        """
        return max(self.at, self.superseded_at)

    @property
    def derived(self) -> int:
        """The number of records derived from orders with this id."""
        return (self.superseded[1] if self.superseded else 0) + 1 + self.reversals

    def trusts(self, refund: Refund) -> bool:
        """Whether the refund may reverse this order. It must be at least as trusted as the order."""
        return refund.signed or not self.signed

    def yields_to(self, order: Order) -> bool:
        """Whether `order` supersedes this one."""
        return order.signed and self.signed is False

    def has_reversed(self, refund: Refund) -> bool:
        """Whether a refund with the same refund id, at least as trusted, has reversed something."""
        known = self.refund_ids if refund.signed else [*self.refund_ids, *self.public_refund_ids]
        return refund.refund_id is not None and refund.refund_id in known

    def same_value(self, order: Order) -> bool:
        amounts = (self.revenue, self.total) == (order.revenue, order.total)
        return amounts and currency_code(self.currency) == currency_code(order.currency)


def mark_key(tenant: str, order_id: str | None, event_id: str) -> str:
    """The key of an order's mark. It is made from the order id, or from the event id if there is no order id."""
    marks, name = _marks(order_id, event_id)
    return marks.key(name, tenant)


_OF_ORDER = StoredValue("attribution-order", DecidedOrder)
_OF_EVENT = StoredValue("attribution-event", DecidedOrder)
"""The marks by order id, and those of orders without one by the id of their event."""


def _marks(order_id: str | None, event_id: str) -> tuple[StoredValue[DecidedOrder], str]:
    return (_OF_EVENT, event_id) if order_id is None else (_OF_ORDER, order_id)


class Marks:
    """Reads and writes marks in a transaction. A mark counts for `memory` milliseconds."""

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def of(self, order: Order | Refund) -> DecidedOrder | None:
        """The mark of the order, or of the order that a refund refers to, unless it is too old."""
        mark = await self.find(order.tenant, order.order_id, order.event_id)
        return mark if mark is not None and order.received_at - mark.remembered_from <= self._memory else None

    async def find(self, tenant: str, order_id: str | None, event_id: str) -> DecidedOrder | None:
        marks, name = _marks(order_id, event_id)
        return await marks.load(self._state, name, tenant)

    async def of_order_id(self, order_id: str, tenants: Collection[str]) -> Mapping[str, DecidedOrder]:
        """The marks of an order id by tenant. For an order without id, it is the id of its event."""
        keys = [(mark_key(tenant, order_id, ""), mark_key(tenant, None, order_id)) for tenant in tenants]
        await self._state.load(keys=[key for pair in keys for key in pair])
        found = {}
        for tenant in tenants:
            mark = await self.find(tenant, order_id, "") or await self.find(tenant, None, order_id)
            if mark is not None:
                found[tenant] = mark
        return found

    async def set(self, order: Order | Refund, mark: DecidedOrder) -> None:
        marks, name = _marks(order.order_id, order.event_id)
        life = entry_life(mark.remembered_from, self._state.now, self._memory)
        await marks.save(self._state, mark, name, order.tenant, ttl=life)
        await remember_tenant(self._state, order.tenant)


def entry_life(at: int, now: int, memory: int) -> int:
    """The life of an entry that counts for `memory` from `at` on, all in milliseconds.

    The life begins at `at` even if the clock is behind it. So a refund cannot shorten the memory of its order.
    """
    return max(0, at - now) + memory + _MARGIN


async def remember_tenant(state: State, tenant: str) -> None:
    key = state_key(TENANTS, tenant, "")
    if await state.get(key) is None:
        await state.put(key, tenant)
