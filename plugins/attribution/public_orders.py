"""The number of orders that a visitor or a user sends in a day with a public key. It is limited."""

from __future__ import annotations

from ingestd.api.store import State, state_key, tenant_digest

from .marks import Order

__all__ = ["MAX_OF_USER", "MAX_OF_VISITOR", "PublicOrders"]

MAX_OF_VISITOR = 100
"""Orders of public keys that are attributed in a day (UTC). Each may write 64 KiB."""
MAX_OF_USER = 1000
"""The same for a user, who may have many devices."""

_DAY = 86_400_000
_LIFE = 31 * _DAY
"""The clock ends the life of a number, but the journal decides what counts. Attribution may be late by 30 days."""


class PublicOrders:
    def __init__(self, state: State) -> None:
        self._state = state

    async def add(self, order: Order, anonymous_id: str | None, user_id: str | None) -> bool:
        """Count an order on its day of receipt, unless it is one too many. Returns whether it has room.

        Without an id the order counts for nobody, because many visitors may have sent it.
        """
        counts = []
        tag = tenant_digest(order.tenant)  # so that a copy to other partitions finds the tenant
        for kind, text, most in (("visitor", anonymous_id, MAX_OF_VISITOR), ("user", user_id, MAX_OF_USER)):
            if text is not None:
                day = order.received_at // _DAY
                key = state_key(f"attribution-public-{kind}", order.tenant, f"{day}:{text}")
                known = await self._state.get(key)
                count = 0 if known is None else int(known.removeprefix(tag))
                if count >= most:
                    return False
                counts.append((key, count))
        for key, count in counts:
            await self._state.put(key, f"{tag}{count + 1}", _LIFE)
        return True
