"""Refunds and cancellations that wait for their order."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ingestd.api.store import State, StoredValue

from .marks import Order, Refund, entry_life, remember_tenant

__all__ = ["MAX_WAITING", "WAITING", "find_waiting", "take_waiting", "wait"]

MAX_WAITING = 20
"""Signed refunds that can wait for one order. As many of public keys can wait too. Callers choose order ids."""


WAITING = StoredValue("attribution-waiting", list[list[Any]])
"""By order id."""
_IN_KEY = 2  # members of a refund that the entry does not repeat: the tenant and the order id, which may be long


async def wait(state: State, refund: Refund, memory: int) -> Literal["waiting", "repeated", "too_many"]:
    """Keep a refund until its order is decided, unless it repeats another one of the same trust, or too many wait.

    At most `MAX_WAITING` of each trust wait. A signed refund waits until a signed order is decided. If an order of a
    public key comes first, the refund applies to both.

    A refund counts for `memory` milliseconds. Ages count from the times of receipt, so the result does not depend on
    when attribution runs.
    """
    assert refund.order_id is not None
    kept = _remembered(await find_waiting(state, refund.tenant, refund.order_id), refund.received_at, memory)
    rivals = [each for each in kept if each.signed == refund.signed]
    if any(refund.repeats(each) for each in rivals):
        return "repeated"
    if len(rivals) >= MAX_WAITING:
        return "too_many"
    await _put(state, refund, [*kept, refund], memory)
    return "waiting"


async def take_waiting(state: State, order: Order, memory: int) -> list[Refund]:
    """The refunds that wait for this order, as sorted in the journal.

    A signed order takes all of them. After an order of a public key, signed refunds still wait for a signed order.
    """
    if order.order_id is None:
        return []
    found = await find_waiting(state, order.tenant, order.order_id)
    if not found:
        return []
    kept = _remembered(found, order.received_at, memory)
    stay = [] if order.signed else [msgspec.structs.replace(each, is_applied=True) for each in kept if each.signed]
    if stay:
        await _put(state, order, stay, memory)
    else:
        await WAITING.save(state, None, order.order_id, order.tenant)
    return kept if order.signed else [each for each in kept if not each.is_applied]


async def find_waiting(state: State, tenant: str, order_id: str) -> list[Refund]:
    entries = await WAITING.load(state, order_id, tenant) or []
    return [msgspec.convert([tenant, order_id, *members], Refund) for members in entries]


async def _put(state: State, cause: Order | Refund, refunds: list[Refund], memory: int) -> None:
    assert cause.order_id is not None
    entries = [msgspec.to_builtins(each)[_IN_KEY:] for each in refunds]
    # The newest refund may have been received before others, or before the order, if a clock was set back.
    life = entry_life(max(each.received_at for each in refunds), state.now, memory)
    await WAITING.save(state, entries, cause.order_id, cause.tenant, ttl=life)
    await remember_tenant(state, cause.tenant)


def _remembered(refunds: list[Refund], now: int, memory: int) -> list[Refund]:
    return [each for each in refunds if now - each.received_at <= memory]
