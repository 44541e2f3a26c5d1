"""The format of the daemon's own endpoints. The events of a batch have a `type`, which single events lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingestd.api.errors import BadRequest, Refused
from ingestd.api.events import Endpoint, Session
from ingestd.api.intake import Message, Translation
from ingestd.api.times import by_our_clock, parse_time
from ingestd.validation.validator import UNREADABLE

from .event_parser import YEAR_2000
from .outcomes import problem

__all__ = ["OwnBatches", "OwnEvents", "check_batch"]

_SINGLE_ONLY = "anonymousId"
"""A member that every single event has, and no batch outside its events."""
_LONGEST_TIME = 64  # characters
_MOST_PROBLEMS = 64 * 1024
"""Characters of problem documents in the answer to a batch. Behind them a refused event has its status and code."""


def check_batch(endpoint: Endpoint, envelope: Mapping[str, msgspec.Raw]) -> None:
    """Raises `BadRequest` for a signed body that could be a single event, too. Its sender meant one of the two."""
    if _SINGLE_ONLY in envelope and not endpoint.is_public:
        raise BadRequest.of_member(f"/{_SINGLE_ONLY}", "not in a signed batch outside its events", "purpose")


class OwnEvents(Translation):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._identifies = endpoint.identifies

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        if self._identifies:
            _check_purpose(self._endpoint, message)
            return Message("identify", message)
        if "key" not in message and "traits" in message:
            raise BadRequest.of_member(
                "/key", "required, but missing; an identify request has another path", "required"
            )
        return Message("event", message)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        (result,) = results
        return result if isinstance(result, Refused) else f"{{{_members(self._endpoint, result)}}}".encode()


class OwnBatches(Translation):
    envelope = ("sentAt", _SINGLE_ONLY)
    """Names of the members beside the events that are read."""

    def __init__(self, endpoint: Endpoint, received_at: int, envelope: Mapping[str, msgspec.Raw]) -> None:
        self._endpoint = endpoint
        self._received_at = received_at
        sent_at = envelope.get("sentAt")
        # A backend's clock is right, and the times of its events are checked as they were signed.
        self._sent_at = _time(bytes(sent_at)) if sent_at is not None and endpoint.is_public else None

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        """`type` leaves the event: it belongs to the format of the batch."""
        kind = message.pop("type", "event")
        if kind not in ("event", "identify"):
            raise BadRequest.of_member("/type", 'expected "event" or "identify"', "enum")
        if kind == "identify":
            _check_purpose(self._endpoint, message)
        return Message(kind, message, None if self._sent_at is None else self._take_time(message, self._sent_at))

    def _take_time(self, message: dict[str, Any], sent_at: int) -> int | None:
        """The time of the event by the daemon's clock. A `timestamp` since 2000 by this clock leaves the event."""
        text = message.get("timestamp")
        at = parse_time(text) if isinstance(text, str) else None
        if at is None:
            return None
        at = by_our_clock(at, sent_at, self._received_at)
        if at >= YEAR_2000:
            del message["timestamp"]
        return at

    def answer(self, results: Sequence[Session | Refused]) -> bytes:
        """The answer and status of each event."""
        told = 0
        texts = []
        for one in results:
            if not isinstance(one, Refused):
                texts.append(f'{{"status":200,{_members(self._endpoint, one)}}}')
            elif told < _MOST_PROBLEMS:
                texts.append(problem(one).body.decode())
                told += len(texts[-1])
            else:
                texts.append(f'{{"status":{one.status},"success":false,"code":"{one.code}"}}')
        head = '"success":true,' if self._endpoint.is_public else ""
        return f'{{{head}"results":[{",".join(texts)}]}}'.encode()


def _check_purpose(endpoint: Endpoint, message: dict[str, Any]) -> None:
    """A signed event is no identify request: whoever sends a copy of it elsewhere must not get a signed link by it."""
    if "key" in message and not endpoint.is_public:
        raise BadRequest.of_member("/key", "not in a signed identify request", "purpose")


def _time(raw: bytes) -> int | None:
    """The instant of a JSON text; None for anything else."""
    if len(raw) > _LONGEST_TIME:
        return None
    try:
        return parse_time(msgspec.json.decode(raw, type=str))
    except UNREADABLE:
        return None


def _members(endpoint: Endpoint, session: Session) -> str:
    """The members of a success. A session id from a caller is always a UUID, so it needs no escapes."""
    if not endpoint.is_public:
        return f'"session":{{"sessionId":"{session.session_id}"}}'
    is_new = "true" if session.is_new else "false"
    return f'"success":true,"session":{{"sessionId":"{session.session_id}","isNew":{is_new}}}'
