"""Parses a body into an event: checks it against the schema, moves unknown members to `extra`, bounds its time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ingestd.api import times
from ingestd.api.events import Event, Principal, Request
from ingestd.api.intake import Message
from ingestd.api.outcomes import IgnoredTimestamp, Outcome
from ingestd.hooks.caller import Hooks
from ingestd.observability.unusable_id_reports import IdField
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.validator import Validator

from .resolver import Resolved, lone_session

__all__ = ["STORED_FORMS", "YEAR_2000", "EventParser", "Reports", "truncated"]

_DAY = 86_400_000
YEAR_2000 = 946_684_800_000
"""The earliest time of an event. An earlier time comes from an unset clock, date or number."""
_EVENT_FIELDS = frozenset(["key", "data", "anonymousId", "userId", "sessionId", "dispatchId", "messageId", "context"])
_IDENTIFY_FIELDS = frozenset(["anonymousId", "userId", "sessionId", "traits", "messageId", "context"])


class Reports(Protocol):
    """Is told of each `timestamp` that is not taken as the time of its event, of each field with an unusable id, and
    of the number of texts in an event that were read as numbers.
    """

    def timestamp_ignored(self, reason: IgnoredTimestamp, /) -> None: ...
    def unusable_id(self, field: IdField, /) -> None: ...
    def texts_as_numbers(self, count: int, /) -> None: ...


class EventParser:
    """Parses bodies. `stored_address` makes the stored form of a client's address; None: no address is stored."""

    def __init__(
        self,
        validator: Validator,
        hooks: Hooks,
        reports: Reports,
        *,
        unusable_ids: UnusableIds,
        stored_address: Callable[[str], str] | None = None,
    ) -> None:
        self._validator = validator
        self._check_identity = hooks.check_identity
        self._prepare = hooks.prepare
        self._keys = {key: key for key in validator.keys}  # so that all events share one string of each key
        self._schema_ids = validator.schema_ids
        self._stored_address = stored_address
        self._timestamp_ignored = reports.timestamp_ignored
        self._unusable_ids = unusable_ids
        self._unusable_id = reports.unusable_id
        self._texts_as_numbers = reports.texts_as_numbers

    def key_of(self, body: Mapping[str, Any]) -> str:
        """The event key of a body; empty if it is unknown, because a caller must not choose the labels of metrics."""
        named = body.get("key")
        return self._keys.get(named, "") if isinstance(named, str) else ""

    def read(  # noqa: PLR0912 - one pass over the fields; a call for each part would cost as much as the part
        self,
        request: Request,
        principal: Principal,
        message: Message,
        *,
        record_id: str,
        faults: FaultBudget | None = None,
    ) -> Event | Resolved:
        """The event, or the result of an event that a plugin drops. Raises `Refused`, `HookFailure`.

        `faults` is the budget of a request with several events.
        """
        kind, body = message.kind, message.body
        is_event = kind == "event"
        if not is_event:
            self._validator.identify(body, faults)
        elif not message.has_schema:
            self._validator.envelope(body, faults)
        elif message.texts_as_numbers:
            read = self._validator.event_with_texts(body, faults)
            if read:
                self._texts_as_numbers(read)
        else:
            self._validator.event(body, faults)
        if principal.check_event is not None:
            principal.check_event(body, request.received_at)
        endpoint = request.endpoint
        public = endpoint.is_public
        if public and not is_event:  # one in a server's batch does not come from a browser
            endpoint = endpoint.identify
        received_at = timestamp = request.received_at
        known = _EVENT_FIELDS if is_event else _IDENTIFY_FIELDS
        extra = {}
        if not known.issuperset(body):
            extra = {name: value for name, value in body.items() if name not in known}
            if "timestamp" in extra and message.at is None:
                timestamp = self._take_timestamp(extra, received_at, public=public)
        if message.at is not None:
            timestamp = self._bound(message.at, received_at, public=public)
        dispatch_id = body.get("dispatchId")
        if not is_event and isinstance(dispatch_id, str):
            # An identify request may have a dispatch id, which its schema leaves free: other types stay in `extra`.
            del extra["dispatchId"]
        context = body.get("context", {})
        if public and self._stored_address is not None and request.peer and not message.relayed:
            # Only if the caller sends none. The address of a shop's backend is no visitor's, so it is not stored.
            context.setdefault("ip", self._stored_address(request.peer))
        user_id = body.get("userId") or None
        data = body["data"] if is_event else {}
        event = Event(  # by position: so many keywords would take three times as long
            record_id,
            kind,
            principal.tenant,
            endpoint,
            received_at,
            timestamp,
            body["key"] if is_event else None,
            data,
            {} if is_event else body.get("traits", {}),
            body["anonymousId"],
            user_id,
            body.get("sessionId"),
            False,
            dispatch_id if isinstance(dispatch_id, str) else None,
            body.get("messageId"),
            context,
            extra,
            self._check_ids(body["anonymousId"], user_id, data),
            principal.signed,
            None,
            message.links and is_event,
            message.relayed,
            None,
            principal.message_life,
            self._schema_ids[body["key"]] if is_event and message.has_schema else None,
        )
        if not is_event:
            self._check_identity(event)
        if self._prepare is not None:
            anonymous_id, session_id = event.anonymous_id, event.session_id
            if self._prepare(event, request) is not None:
                return Resolved(Outcome.DROPPED, lone_session(session_id))
            if event.anonymous_id is not anonymous_id:
                event.has_visitor = event.anonymous_id not in self._unusable_ids
        return event

    def _check_ids(self, anonymous_id: str, user_id: str | None, data: Mapping[str, Any]) -> bool:
        """Report each unusable id. Returns whether the event has a visitor."""
        unusable_ids = self._unusable_ids
        if user_id is not None and user_id in unusable_ids:
            self._unusable_id(IdField.USER_ID)
        order_id = data.get("order_id")
        if order_id and isinstance(order_id, str) and order_id in unusable_ids:
            self._unusable_id(IdField.ORDER_ID)
        if anonymous_id in unusable_ids:
            self._unusable_id(IdField.ANONYMOUS_ID)
            return False
        return True

    def _take_timestamp(self, extra: dict[str, Any], received_at: int, *, public: bool) -> int:
        """The time of the event. A `timestamp` since 2000 leaves `extra`, even if the time of receipt replaces it."""
        sent = extra["timestamp"]
        at = times.parse_time(sent) if isinstance(sent, str) else None
        if at is None:
            self._timestamp_ignored(IgnoredTimestamp.UNPARSABLE)
            return received_at
        if at >= YEAR_2000:
            del extra["timestamp"]
        return self._bound(at, received_at, public=public)

    def _bound(self, at: int, received_at: int, *, public: bool) -> int:
        """The time of an event that was sent with the time `at`."""
        if at < YEAR_2000:
            self._timestamp_ignored(IgnoredTimestamp.UNSET)
            return received_at
        if at > received_at:
            self._timestamp_ignored(IgnoredTimestamp.FUTURE)
            return received_at
        if public and at < received_at - _DAY:
            self._timestamp_ignored(IgnoredTimestamp.TOO_OLD)
            return received_at
        return at


def truncated(address: str) -> str:
    """The network of an address: the /24 of an IPv4 address, the /48 of an IPv6 address."""
    if ":" not in address:
        return address.rpartition(".")[0] + ".0"
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address)[:6] + bytes(10))


STORED_FORMS: Mapping[str, Callable[[str], str] | None] = {"no": None, "truncated": truncated, "whole": str}
"""Functions that make the stored form of an address, by the value of `[http] store_address`. None: it is not stored."""
