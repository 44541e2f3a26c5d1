"""Refunds and cancellations that wait for their order."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ingestd.api.store import State, StoredValue

from .marks import Order, Refund, entry_life, remember_tenant

__all__ = ["MAX_WAITING", "WaitingRefunds", "waiting_key"]

MAX_WAITING = 20
"""Signed refunds that can wait for one order. As many of public keys can wait too. Callers choose order ids."""


_WAITING = StoredValue("attribution-waiting", list[list[Any]])
"""By order id."""
_IN_KEY = 2  # members of a refund that the entry does not repeat: the tenant and the order id, which may be long


def waiting_key(tenant: str, order_id: str) -> str:
    return _WAITING.key(order_id, tenant)


class WaitingRefunds:
    """Keeps refunds until their order is decided. A refund counts for `memory` milliseconds.

    A signed refund waits until a signed order is decided. If an order of a public key comes first, the refund applies
    to both. Ages count from the times of receipt, so the result does not depend on when attribution runs.
    """

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def add(self, refund: Refund) -> Literal["waiting", "repeated", "too_many"]:
        """Keep a refund, unless it repeats another one of the same trust, or `MAX_WAITING` of that trust wait."""
        assert refund.order_id is not None
        kept = self._remembered(await self.find(refund.tenant, refund.order_id), refund.received_at)
        rivals = [each for each in kept if each.signed == refund.signed]
        if any(refund.repeats(each) for each in rivals):
            return "repeated"
        if len(rivals) >= MAX_WAITING:
            return "too_many"
        await self._put(refund.tenant, refund.order_id, [*kept, refund], refund.received_at)
        return "waiting"

    async def take(self, order: Order) -> list[Refund]:
        """The refunds that wait for this order, as sorted in the journal.

        A signed order takes all of them. After an order of a public key, signed refunds still wait for a signed order.
        """
        if order.order_id is None:
            return []
        found = await self.find(order.tenant, order.order_id)
        if not found:
            return []
        kept = self._remembered(found, order.received_at)
        stay = [] if order.signed else [_applied(each) for each in kept if each.signed]
        if stay:
            await self._put(order.tenant, order.order_id, stay, order.received_at)
        else:
            await _WAITING.save(self._state, None, order.order_id, order.tenant)
        return kept if order.signed else [each for each in kept if not each.is_applied]

    async def find(self, tenant: str, order_id: str) -> list[Refund]:
        entries = await _WAITING.load(self._state, order_id, tenant) or []
        return [msgspec.convert([tenant, order_id, *members], Refund) for members in entries]

    async def _put(self, tenant: str, order_id: str, refunds: list[Refund], now: int) -> None:
        entries = [msgspec.to_builtins(each)[_IN_KEY:] for each in refunds]
        life = entry_life(now, self._state.now, self._memory)
        await _WAITING.save(self._state, entries, order_id, tenant, ttl=life)
        await remember_tenant(self._state, tenant)

    def _remembered(self, refunds: list[Refund], now: int) -> list[Refund]:
        return [each for each in refunds if now - each.received_at <= self._memory]


def _applied(refund: Refund) -> Refund:
    return msgspec.structs.replace(refund, is_applied=True)
