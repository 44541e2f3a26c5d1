"""What public keys may decide: their orders of a day are limited, and what was ignored is remembered."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.store import State, state_key, tenant_digest

from .marks import Order, Refund, remember_tenant

__all__ = ["MAX_OF_USER", "MAX_OF_VISITOR", "Untrusted", "add_untrusted", "count_public", "find_untrusted"]

_MAX_KEPT = 20  # of an order
_EXCESS = " too many"
_LIFE = 30 * 86_400_000  # strangers choose order ids, so entries must end


class Untrusted(NamedTuple):
    kind: str
    """`order`, `refund` or `cancel`."""
    event_id: str
    received_at: int
    is_excess: bool
    """Whether it was one too many. Otherwise public keys decide nothing here."""


async def add_untrusted(state: State, ignored: Order | Refund, *, is_excess: bool = False) -> None:
    """Remember an ignored record for 30 days, among the newest ones of its order id."""
    key = _key(ignored.tenant, ignored.order_id or ignored.event_id)
    kind = "order" if isinstance(ignored, Order) else ignored.reason
    member = f"{kind} {ignored.event_id}{_EXCESS * is_excess}"
    await state.push(key, member, ignored.received_at, keep=_MAX_KEPT, ttl=_LIFE)
    await remember_tenant(state, ignored.tenant)


async def find_untrusted(state: State, tenant: str, order_id: str) -> list[Untrusted]:
    """The ignored records of an order id, or of an event id for an order without id. The oldest is first."""
    return [
        Untrusted(kind, event_id.removesuffix(_EXCESS), at, event_id.endswith(_EXCESS))
        for member, at in await state.window(_key(tenant, order_id))
        for kind, event_id in [member.split(" ", 1)]
    ]


def _key(tenant: str, order_id: str) -> str:
    return state_key("attribution-untrusted", tenant, order_id)


MAX_OF_VISITOR = 100
"""Orders of public keys that are attributed in a day (UTC). Each may write 64 KiB."""
MAX_OF_USER = 1000
"""The same for a user, who may have many devices."""

_DAY = 86_400_000
_LIFE_OF_COUNT = 31 * _DAY
"""The clock ends the life of a number, but the journal decides what counts. Attribution may be late by 30 days."""


async def count_public(state: State, order: Order, anonymous_id: str | None, user_id: str | None) -> bool:
    """Count an order on its day of receipt, unless it is one too many. Returns whether it has room.

    Without an id the order counts for nobody, because many visitors may have sent it.
    """
    counts = []
    tag = tenant_digest(order.tenant)  # so that a copy to other partitions finds the tenant
    for kind, text, most in (("visitor", anonymous_id, MAX_OF_VISITOR), ("user", user_id, MAX_OF_USER)):
        if text is not None:
            day = order.received_at // _DAY
            key = state_key(f"attribution-public-{kind}", order.tenant, f"{day}:{text}")
            known = await state.get(key)
            count = 0 if known is None else int(known.removeprefix(tag))
            if count >= most:
                return False
            counts.append((key, count))
    for key, count in counts:
        await state.put(key, f"{tag}{count + 1}", _LIFE_OF_COUNT)
    return True
