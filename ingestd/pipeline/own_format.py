"""The format of the daemon's own endpoints. The events of a batch have a `type`, which single events lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ingestd.api.errors import BadRequest, Refused, SchemaFault, SchemaViolation
from ingestd.api.events import Endpoint, Session
from ingestd.api.intake import Message, Translation
from ingestd.api.times import by_our_clock, parse_time
from ingestd.validation.validator import UNREADABLE

from .responses import batch_body, session_body

__all__ = ["OwnBatches", "OwnEvents"]

_LONGEST_TIME = 64  # characters


class OwnEvents(Translation):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._identifies = endpoint.identifies

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        return Message("identify" if self._identifies else "event", message)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        (result,) = results
        return result if isinstance(result, Refused) else session_body(self._endpoint, result)


class OwnBatches(Translation):
    envelope = ("sentAt",)
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
            fault = SchemaViolation("/type", 'expected "event" or "identify"')
            raise BadRequest(
                f"{fault.pointer}: {fault.message}",
                code="invalid_envelope",
                errors=[fault],
                fault=SchemaFault(fault.pointer, "enum"),
            )
        return Message(kind, message, None if self._sent_at is None else self._take_time(message, self._sent_at))

    def _take_time(self, message: dict[str, Any], sent_at: int) -> int | None:
        """The time of the event by the daemon's clock. A `timestamp` that is a time leaves the event."""
        text = message.get("timestamp")
        at = parse_time(text) if isinstance(text, str) else None
        if at is None:
            return None
        del message["timestamp"]
        return by_our_clock(at, sent_at, self._received_at)

    def answer(self, results: Sequence[Session | Refused]) -> bytes:
        return batch_body(self._endpoint, results)


def _time(raw: bytes) -> int | None:
    """The instant of a JSON text; None for anything else."""
    if len(raw) > _LONGEST_TIME:
        return None
    try:
        return parse_time(msgspec.json.decode(raw, type=str))
    except UNREADABLE:
        return None
