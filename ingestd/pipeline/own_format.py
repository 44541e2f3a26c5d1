"""The format of the daemon's own endpoints. The events of a batch have a `type`, which single events lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingestd.api.errors import BadRequest, Refused, SchemaFault, SchemaViolation
from ingestd.api.events import Endpoint, Session
from ingestd.api.intake import Message, Translation

from .responses import batch_body, session_body

__all__ = ["OwnBatches", "OwnEvents"]


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
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

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
        return Message(kind, message)

    def answer(self, results: Sequence[Session | Refused]) -> bytes:
        return batch_body(self._endpoint, results)
