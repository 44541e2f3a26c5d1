"""Rules against replayed signed events: their age, and a message id by which a copy is recognised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestd.api.errors import BadRequest, SchemaFault, SchemaViolation
from ingestd.api.events import MESSAGE_LIFE
from ingestd.api.options import Duration
from ingestd.api.times import parse_time

__all__ = ["ReplayRules"]

_MAX_SKEW = 300_000  # milliseconds that a sender's clock may be ahead
_MISSING = "required in a signed event, but missing"
_STALE = "stale_timestamp"


class ReplayRules:
    """Checks `timestamp` and `messageId` of a signed event. No header can replace them: only the body is signed."""

    def __init__(self, *, max_age: Duration | None, require_message_id: bool) -> None:
        self._max_age = max_age
        self._require_message_id = require_message_id

    def __bool__(self) -> bool:
        """Whether there is anything to check."""
        return self._max_age is not None or self._require_message_id

    @property
    def message_life(self) -> int:
        """Milliseconds for which a message is remembered: longer than `check` takes a copy of it.

        The timestamp may be ahead of the receipt by `_MAX_SKEW`. The clock of the store, or of another daemon, may
        differ from that of the receipt by as much again.
        """
        return MESSAGE_LIFE if self._max_age is None else max(MESSAGE_LIFE, self._max_age.milliseconds + 2 * _MAX_SKEW)

    def check(self, body: Mapping[str, Any], received_at: int) -> None:
        """Raises `BadRequest` with all faults."""
        faults: list[tuple[SchemaViolation, str]] = []
        if self._require_message_id and "messageId" not in body:
            faults.append((SchemaViolation("/messageId", _MISSING), "required"))
        if self._max_age is not None:
            wrong = _time_fault(body, self._max_age, received_at)
            if wrong is not None:
                message, reason = wrong
                faults.append((SchemaViolation("/timestamp", message), reason))
        if faults:
            first, reason = faults[0]
            raise BadRequest(
                "; ".join(f"{fault.pointer}: {fault.message}" for fault, _ in faults),
                code=_STALE if reason == _STALE else "invalid_envelope",
                errors=[fault for fault, _ in faults],
                fault=SchemaFault(first.pointer, reason),
            )


def _time_fault(body: Mapping[str, Any], max_age: Duration, received_at: int) -> tuple[str, str] | None:
    """The fault of the timestamp and the reason in the metric; None if there is no fault."""
    if "timestamp" not in body:
        return _MISSING, "required"
    sent = body["timestamp"]
    at = parse_time(sent) if isinstance(sent, str) else None
    if at is None:
        return "expected an RFC 3339 time", "format"
    if received_at - at > max_age.milliseconds:
        return f"more than {max_age} ago", _STALE
    if at - received_at > min(max_age.milliseconds, _MAX_SKEW):
        return "in the future", _STALE
    return None
