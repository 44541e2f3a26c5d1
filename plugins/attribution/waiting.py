"""Refunds and cancellations that came before their order, and wait for it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ingestd.store import State, state_key

from .marks import Order, Refund, entry_life, remember_tenant

__all__ = ["MAX_WAITING", "WaitingRefunds", "waiting_key"]

MAX_WAITING = 20
"""Refunds and cancellations that can wait for one order: callers choose order ids."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[list[Any]]).decode
_IN_KEY = 2  # members of a refund that the entry does not repeat: the tenant and the order id, which may be long


def waiting_key(tenant: str, order_id: str) -> str:
    return state_key("attribution-waiting", tenant, order_id)


class WaitingRefunds:
    """Keeps refunds until their order is decided. `memory` is how long one counts, in milliseconds.

    Age goes by the times of receipt, so the same refunds count however late the work is done.
    """

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def add(self, refund: Refund) -> Literal["waiting", "repeated", "too_many"]:
        """Keep a refund, unless it repeats another one or too many wait already."""
        assert refund.order_id is not None
        kept = self._remembered(await self.find(refund.tenant, refund.order_id), refund.received_at)
        if any(refund.repeats(each) for each in kept):
            return "repeated"
        if len(kept) >= MAX_WAITING:
            return "too_many"
        entries = [msgspec.to_builtins(each)[_IN_KEY:] for each in (*kept, refund)]
        life = entry_life(refund.received_at, self._state.now, self._memory)
        await self._state.put(waiting_key(refund.tenant, refund.order_id), _encode(entries).decode(), life)
        await remember_tenant(self._state, refund.tenant)
        return "waiting"

    async def take(self, order: Order) -> list[Refund]:
        """Remove the refunds that wait for this order, and return them in the order of the journal."""
        if order.order_id is None:
            return []
        found = await self.find(order.tenant, order.order_id)
        if found:
            await self._state.delete(waiting_key(order.tenant, order.order_id))
        return self._remembered(found, order.received_at)

    async def find(self, tenant: str, order_id: str) -> list[Refund]:
        text = await self._state.get(waiting_key(tenant, order_id))
        entries = [] if text is None else _decode(text)
        return [msgspec.convert([tenant, order_id, *members], Refund) for members in entries]

    def _remembered(self, refunds: list[Refund], now: int) -> list[Refund]:
        return [each for each in refunds if now - each.received_at <= self._memory]
