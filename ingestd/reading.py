"""A body as an event: checked against its schema, what it does not name kept apart, and its time within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from . import times
from .events import Endpoint, Event, Principal, Request
from .validation import Validator

__all__ = ["Kind", "Reader"]

Kind = Literal["event", "identify"]

_DAY = 86_400_000
_EVENT_FIELDS = frozenset(["key", "data", "anonymousId", "userId", "sessionId", "dispatchId", "messageId", "context"])
_IDENTIFY_FIELDS = frozenset(["anonymousId", "userId", "sessionId", "traits", "messageId", "context"])


class Reader:
    """`stored_address` makes of a client's address what is stored of it; None: nothing is.

    `check_identity` raises for an identify request that a plugin refuses.
    """

    def __init__(
        self,
        validator: Validator,
        stored_address: Callable[[str], str] | None,
        check_identity: Callable[[Event], None],
    ) -> None:
        self._validator = validator
        self._check_identity = check_identity
        self._keys = {key: key for key in validator.keys}  # to keep one of each, and not those of bodies
        self._stored_address = stored_address

    def key_of(self, body: Mapping[str, Any]) -> str:
        """The known event key that a body names, else an empty string: callers' own words are nothing to count by."""
        named = body.get("key")
        return self._keys.get(named, "") if isinstance(named, str) else ""

    def read(
        self, request: Request, principal: Principal, body: dict[str, Any], *, kind: Kind, record_id: str
    ) -> Event:
        """Raises `Refused`; of an identify request also whatever a plugin raises."""
        is_event = kind == "event"
        if is_event:
            self._validator.event(body)
        else:
            self._validator.identify(body)
        endpoint = request.endpoint
        public = endpoint is not Endpoint.CUSTOMER_EVENTS
        if public and not is_event:  # what a server tells of a visitor, in a batch, is no browser's doing
            endpoint = Endpoint.IDENTIFY
        received_at = timestamp = request.received_at
        known = _EVENT_FIELDS if is_event else _IDENTIFY_FIELDS
        extra = {}
        if not known.issuperset(body):
            extra = {name: value for name, value in body.items() if name not in known}
            sent = extra.get("timestamp")
            at = times.parse_time(sent) if isinstance(sent, str) else None
            if at is not None:
                del extra["timestamp"]
                if at <= received_at and not (public and at < received_at - _DAY):
                    timestamp = at
        dispatch_id = body.get("dispatchId")
        if not is_event and isinstance(dispatch_id, str):
            # An identify request may tell it, but nothing else under that name is refused there.
            del extra["dispatchId"]
        context = body.get("context", {})
        if public and self._stored_address is not None and request.peer:
            # Unless the caller tells one; and not that of a shop's backend, which is nobody's.
            context.setdefault("ip", self._stored_address(request.peer))
        event = Event(  # by position: by so many names it would take three times as long
            record_id,
            kind,
            principal.tenant,
            endpoint,
            received_at,
            timestamp,
            body["key"] if is_event else None,
            body["data"] if is_event else {},
            {} if is_event else body.get("traits", {}),
            body["anonymousId"],
            body.get("userId") or None,
            body.get("sessionId"),
            False,
            dispatch_id if isinstance(dispatch_id, str) else None,
            body.get("messageId"),
            context,
            extra,
        )
        if not is_event:
            self._check_identity(event)
        return event
