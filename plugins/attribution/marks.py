"""Orders as the journal has them, and the marks of those that are decided: none is decided twice."""

from __future__ import annotations

import msgspec

from ingestd.store import State, state_key

from .models import Model

__all__ = ["TENANTS", "Mark", "Marks", "Order", "mark_key"]

TENANTS = "attribution-tenant"
"""The kind of entries that name the tenants with decided orders."""

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


class Mark(msgspec.Struct, array_like=True):
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

    def same_value(self, order: Order) -> bool:
        return (self.revenue, self.total, self.currency) == (order.revenue, order.total, order.currency)


def mark_key(tenant: str, order_id: str | None, event_id: str) -> str:
    """Where the mark of an order is: by its id, or by that of its event where it has none."""
    if order_id is None:
        return state_key("attribution-event", tenant, event_id)
    return state_key("attribution-order", tenant, order_id)


_decode = msgspec.json.Decoder(Mark).decode


class Marks:
    """Reads and writes marks, in a unit of work. `memory` is how long one counts, in milliseconds."""

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def of(self, order: Order) -> Mark | None:
        """The mark of the order this is or refers to, unless it is too old for it."""
        mark = await self.find(order.tenant, order.order_id, order.event_id)
        return mark if mark is not None and order.received_at - mark.at <= self._memory else None

    async def find(self, tenant: str, order_id: str | None, event_id: str) -> Mark | None:
        text = await self._state.get(mark_key(tenant, order_id, event_id))
        return None if text is None else _decode(text)

    async def set(self, order: Order, mark: Mark) -> None:
        key = mark_key(order.tenant, order.order_id, order.event_id)
        # From the order on, also where the clock stands before it: a refund must not make the order forgotten.
        life = max(0, mark.at - self._state.now) + self._memory + _MARGIN
        await self._state.put(key, msgspec.json.encode(mark).decode(), life)
        tenant = state_key(TENANTS, order.tenant, "")
        if await self._state.get(tenant) is None:
            await self._state.put(tenant, order.tenant)
