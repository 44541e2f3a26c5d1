"""The visitor, the user and the credited touchpoint of decided orders, which their reversals repeat.

They are kept apart from the marks of orders, under the ids of the person, so that a person can be forgotten. A mark
holds digests of these ids only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ingestd.api.store import State, key_digest, kind_of_tenant, state_key, tenant_digest

from .marks import DecidedOrder, Order, entry_life
from .record_size import MAX_CREDITED, bounded, encode, user_id

__all__ = ["CREDITED", "USER", "VISITOR", "People", "Whom"]

VISITOR, USER, CREDITED = "attribution-visitor-id", "attribution-user-id", "attribution-credited"
"""Kinds of entries: the id of a visitor, the id of a user, and the touchpoints of a visitor that orders credited."""

_MAX_CREDITED = 200  # touchpoints of a visitor

_TAG = len(tenant_digest(""))  # characters before the value, so that a copy to other partitions finds the tenant
_decode_pair = msgspec.json.Decoder(tuple[str, str]).decode
_decode_touchpoint = msgspec.json.Decoder(dict[str, Any]).decode


class Whom(NamedTuple):
    """The person and the touchpoint of an order. All ids are None if the person has been forgotten."""

    anonymous_id: str | None
    user_id: str | None
    touchpoint: Mapping[str, Any] | None
    is_forgotten: bool = False


class People:
    """Keeps and finds the people of orders in a transaction, for the `memory` of marks in milliseconds."""

    def __init__(self, state: State, memory: int) -> None:
        self._state = state
        self._memory = memory

    async def keep(self, order: Order, mark: DecidedOrder, touchpoint: Mapping[str, Any] | None) -> DecidedOrder:
        """Keep the person and the credited touchpoint of an order. Returns the mark with references to them."""
        life = entry_life(mark.remembered_from, self._state.now, self._memory)
        user = user_id(order.user_id)
        visitor_ref = await self._keep_id(VISITOR, order.tenant, order.anonymous_id, order.event_id, life)
        user_ref = None if user is None else await self._keep_id(USER, order.tenant, user, order.event_id, life)
        credited = None
        if touchpoint is not None:
            visitor = touchpoint["anonymousId"]
            credited = touchpoint["eventId"], key_digest(order.tenant, visitor)
            member = encode(bounded(touchpoint, MAX_CREDITED)).decode()
            # The time is that of the order, so that the touchpoints credited last stay.
            await self._state.push(
                state_key(CREDITED, order.tenant, visitor), member, order.received_at, keep=_MAX_CREDITED, ttl=life
            )
        return msgspec.structs.replace(mark, person=(visitor_ref, user_ref), credited=credited)

    async def _keep_id(self, kind: str, tenant: str, text: str, generation: str, life: int) -> str:
        """Keep an id. Returns a reference to it, which finds nothing once the id has been forgotten.

        An id that comes again after it was forgotten has another generation, so older orders do not find it.
        """
        key = state_key(kind, tenant, text)
        known = await self._state.get(key)
        if known is not None:
            generation = _decode_id(known)[1]
        await self._state.put(key, f"{tenant_digest(tenant)}{encode((text, generation)).decode()}", life)
        return f"{key_digest(tenant, text)}:{generation}"

    async def of(self, tenant: str, mark: DecidedOrder) -> Whom:
        """The person and touchpoint of a decided order. Nothing is known if an earlier version decided it."""
        touchpoint = await self._credited(tenant, mark)
        if mark.person is None:
            return Whom(None, None, touchpoint)
        visitor_ref, user_ref = mark.person
        visitor = await self._id(VISITOR, tenant, visitor_ref)
        user = None if user_ref is None else await self._id(USER, tenant, user_ref)
        if visitor is None or (user is None and user_ref is not None):
            ids = ("anonymousId", "sessionId", "dispatchId", "clickId")
            touchpoint = touchpoint and {name: None if name in ids else each for name, each in touchpoint.items()}
            return Whom(None, None, touchpoint, is_forgotten=True)
        return Whom(visitor, user, touchpoint)

    async def _id(self, kind: str, tenant: str, reference: str) -> str | None:
        digest, _, generation = reference.partition(":")
        known = await self._state.get(f"{kind_of_tenant(kind, tenant)}:{digest}")
        if known is None:
            return None
        text, found = _decode_id(known)
        return text if found == generation else None

    async def _credited(self, tenant: str, mark: DecidedOrder) -> Mapping[str, Any] | None:
        """The credited touchpoint, or its id alone if its visitor has been forgotten. None for a direct order."""
        if mark.credited is None:
            return None
        event_id, visitor = mark.credited
        for member, _ in await self._state.window(f"{kind_of_tenant(CREDITED, tenant)}:{visitor}"):
            touchpoint = _decode_touchpoint(member)
            if touchpoint["eventId"] == event_id:
                return touchpoint
        return {"eventId": event_id}


def _decode_id(value: str) -> tuple[str, str]:
    """The id and its generation."""
    return _decode_pair(value[_TAG:])
