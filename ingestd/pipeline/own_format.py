"""The format of the daemon's own endpoints. The events of a batch have a `type`, which single events lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingestd.api.errors import BadRequest, Refused
from ingestd.api.events import Endpoint, Session
from ingestd.api.intake import Message, Translation

from .batch_parser import Batch
from .responses import batch_body, session_body

__all__ = ["SINGLE_ONLY", "OwnBatches", "OwnEvents", "check_batch"]

SINGLE_ONLY = "anonymousId"
"""A member that every single event has, and no batch outside its events."""


def check_batch(endpoint: Endpoint, batch: Batch) -> None:
    """Raises `BadRequest` for a signed body that could be a single event, too. Its sender meant one of the two."""
    if batch.envelope and not endpoint.is_public:
        raise BadRequest.of_member(f"/{SINGLE_ONLY}", "not in a signed batch outside its events", "purpose")


class OwnEvents(Translation):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._identifies = endpoint.identifies

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        if self._identifies:
            return _identify(self._endpoint, message)
        if "key" not in message and "traits" in message:
            raise BadRequest.of_member(
                "/key", "required, but missing; an identify request has another path", "required"
            )
        return Message("event", message)

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
            raise BadRequest.of_member("/type", 'expected "event" or "identify"', "enum")
        return _identify(self._endpoint, message) if kind == "identify" else Message("event", message)

    def answer(self, results: Sequence[Session | Refused]) -> bytes:
        return batch_body(self._endpoint, results)


def _identify(endpoint: Endpoint, message: dict[str, Any]) -> Message:
    """A signed event is no identify request: whoever sends a copy of it elsewhere must not get a signed link by it."""
    if "key" in message and not endpoint.is_public:
        raise BadRequest.of_member("/key", "not in a signed identify request", "purpose")
    return Message("identify", message)
