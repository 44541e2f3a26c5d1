"""Orders and refunds as the journal has them, and the marks of decided orders: none is decided twice."""

from __future__ import annotations

from decimal import Decimal
from hashlib import blake2b
from typing import Literal

import msgspec

from ingestd.api.store import State, state_key

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
"""Marks stay so much longer than they count: their life is by the clock, what counts by the journal."""


class Order(msgspec.Struct, frozen=True):
    """An `Order Completed` as the journal has it. Times are in milliseconds."""

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
    """An `Order Refunded` or `Order Cancelled` as the journal has it. Times are in milliseconds.

    Nothing of a person is in it. It is stored while it waits: a later version may append members with defaults.
    """

    tenant: str
    order_id: str | None
    event_id: str
    received_at: int
    reason: Reason
    amount: Decimal | None
    """How much it asks for, never negative. None asks for all that is left of the order."""
    currency: str | None
    """As `currency_code` gives it."""
    refund_id: str | None
    """As `refund_id_digest` gives it."""
    signed: bool = False
    is_applied: bool = False
    """Whether it was applied to an order of a public key. It waits for a signed order that supersedes that one."""

    def repeats(self, other: Refund) -> bool:
        """Whether this is the other one sent again under the same refund id."""
        terms = (self.refund_id, self.reason, self.amount, self.currency)
        return self.refund_id is not None and terms == (other.refund_id, other.reason, other.amount, other.currency)


def refund_id_digest(refund_id: str) -> str:
    """A refund id in 16 characters: callers choose its length, and the mark of an order keeps many."""
    return blake2b(refund_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class DecidedOrder(msgspec.Struct, array_like=True):
    """What is remembered of a decided order, for repeats and reversals: longer than the journal may keep it.

    Nothing of a person is in it.
    """

    at: int
    """When it was received: the age of the mark goes by it."""
    position: int
    attribution_id: str
    revenue: int | float | None
    total: int | float | None
    currency: str | None
    reversed: str
    """How much of its worth has been reversed, as a decimal."""
    is_reversed: bool
    """Whether all of it has."""
    reversals: int
    """How many reversals there are."""
    touches: list[tuple[str, int]]
    """Id and age at the order of each touchpoint, oldest first."""
    model: Model
    half_life: int
    refund_ids: list[str] = []
    """Digests of the refund ids that have reversed something, the oldest first; their number is bounded.

    Those of public keys are in another list: whoever guesses a refund id must not block the shop's own refund.
    """
    signed: bool | None = None
    """Whether the order came signed. None: an earlier program decided it, and nobody knows."""
    public_refund_ids: list[str] = []
    """As `refund_ids`, of refunds that did not come signed."""
    superseded: tuple[int, int] | None = None
    """Of the public key's order that this one superseded: its position, and how many records were derived of it."""
    campaigns: list[int] | None = None
    """The digest of each touchpoint's campaign. None: an earlier program decided the order."""

    def trusts(self, refund: Refund) -> bool:
        """Whether the refund may reverse this order: it is at least as trusted as the order."""
        return refund.signed or not self.signed

    def yields_to(self, order: Order) -> bool:
        """Whether the order supersedes this one."""
        return order.signed and self.signed is False

    def has_reversed(self, refund: Refund) -> bool:
        """Whether a refund of the same refund id, no less trusted, has reversed something."""
        known = self.refund_ids if refund.signed else [*self.refund_ids, *self.public_refund_ids]
        return refund.refund_id is not None and refund.refund_id in known

    def same_value(self, order: Order) -> bool:
        amounts = (self.revenue, self.total) == (order.revenue, order.total)
        return amounts and currency_code(self.currency) == currency_code(order.currency)


def mark_key(tenant: str, order_id: str | None, event_id: str) -> str:
    """Where the mark of an order is: by its id, or by that of its event where it has none."""
    if order_id is None:
        return state_key("attribution-event", tenant, event_id)
    return state_key("attribution-order", tenant, order_id)


_decode = msgspec.json.Decoder(DecidedOrder).decode


class Marks:
    """Reads and writes marks, in a unit of work. `memory` is how long one counts, in milliseconds."""

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def of(self, order: Order | Refund) -> DecidedOrder | None:
        """The mark of the order, or of the order that a refund refers to, unless it is too old."""
        mark = await self.find(order.tenant, order.order_id, order.event_id)
        return mark if mark is not None and order.received_at - mark.at <= self._memory else None

    async def find(self, tenant: str, order_id: str | None, event_id: str) -> DecidedOrder | None:
        text = await self._state.get(mark_key(tenant, order_id, event_id))
        return None if text is None else _decode(text)

    async def set(self, order: Order | Refund, mark: DecidedOrder) -> None:
        key = mark_key(order.tenant, order.order_id, order.event_id)
        life = entry_life(mark.at, self._state.now, self._memory)
        await self._state.put(key, msgspec.json.encode(mark).decode(), life)
        await remember_tenant(self._state, order.tenant)


def entry_life(at: int, now: int, memory: int) -> int:
    """How long the store keeps an entry that counts for `memory` from `at` on, all in milliseconds.

    It begins at `at` also where the clock is behind that: a refund must not make its order forgotten.
    """
    return max(0, at - now) + memory + _MARGIN


async def remember_tenant(state: State, tenant: str) -> None:
    key = state_key(TENANTS, tenant, "")
    if await state.get(key) is None:
        await state.put(key, tenant)
