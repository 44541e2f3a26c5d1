"""Orders, refunds and cancellations that were ignored because a public key sent them. `attribution show` lists them.

Either public keys decide nothing here, or there were too many.
"""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.store import State, state_key

from .marks import Order, Refund, remember_tenant

__all__ = ["Untrusted", "UntrustedRecords"]

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


class UntrustedRecords:
    """Keeps the newest ignored records of each order id for 30 days."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def add(self, ignored: Order | Refund, *, is_excess: bool = False) -> None:
        key = _key(ignored.tenant, ignored.order_id or ignored.event_id)
        kind = "order" if isinstance(ignored, Order) else ignored.reason
        member = f"{kind} {ignored.event_id}{_EXCESS * is_excess}"
        await self._state.push(key, member, ignored.received_at, keep=_MAX_KEPT, ttl=_LIFE)
        await remember_tenant(self._state, ignored.tenant)

    async def find(self, tenant: str, order_id: str) -> list[Untrusted]:
        """The ignored records of an order id, or of an event id for an order without id. The oldest is first."""
        members = await self._state.window(_key(tenant, order_id))
        return [
            Untrusted(kind, event_id.removesuffix(_EXCESS), at, event_id.endswith(_EXCESS))
            for member, at in members
            for kind, event_id in [member.split(" ", 1)]
        ]


def _key(tenant: str, order_id: str) -> str:
    return state_key("attribution-untrusted", tenant, order_id)
