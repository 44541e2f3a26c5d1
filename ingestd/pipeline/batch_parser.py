"""Splits the body of a batch into the bodies of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from ingestd.api.errors import BadRequest, SchemaFault, SchemaViolation
from ingestd.validation.validator import UNREADABLE, unreadable

from .event_boundaries import split_batch

__all__ = ["MAX_EVENTS", "BatchParser"]

MAX_EVENTS = 1000
"""The largest number of events in a batch."""

# Fields for one event more than a batch may have; the decoder skips the rest. A list would be built whole before it is
# counted, and a few megabytes have room for millions of elements.
_EVENTS = [f"event_{number}" for number in range(MAX_EVENTS + 1)]
_Events = msgspec.defstruct("_Events", [(name, msgspec.Raw, msgspec.UNSET) for name in _EVENTS], array_like=True)
_Batch = msgspec.defstruct("_Batch", [("events", _Events)])
_decode_batch = msgspec.json.Decoder(_Batch).decode

# For batches of the wrong shape: any type of `events`, and any type of the body.
_AnyBatch = msgspec.defstruct("_AnyBatch", [("events", msgspec.Raw, msgspec.Raw())])
_decode_any_batch = msgspec.json.Decoder(_AnyBatch).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode

_TYPE_NAMES = {b"{": "object", b"[": "array", b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null"}


class BatchParser:
    """Parses valid batches at once. A faulty batch takes many times as long, so these are parsed one at a time."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def parse(self, body: bytes) -> Sequence[msgspec.Raw]:
        """The bodies of the events, which the caller parses one by one. Raises `BadRequest` if the body is no batch.

        Each is a slice of `body`. The caller copies it (by `bytes`) right before it parses it, so that it is in the
        processor's cache. If only the inside of some events is not JSON, this still returns all events.
        """
        try:
            events = _raw_events(body)
        except UNREADABLE as error:
            async with self._one_at_a_time:
                await asyncio.sleep(0)  # a large body has taken ten milliseconds so far
                if isinstance(error, msgspec.ValidationError):
                    _refuse_type(body)
                apart = await _tell_events_apart(body)
                if apart is None:
                    raise unreadable(error, body) from None
                events = apart
        if not 1 <= len(events) <= MAX_EVENTS:
            found, reason = ("more", "maxItems") if events else ("none", "minItems")
            raise _wrong_batch("/events", f"expected 1 to {MAX_EVENTS} events, got {found}", reason)
        return events


def _raw_events(body: bytes) -> Sequence[msgspec.Raw]:
    """The elements of `events`, at most `MAX_EVENTS` + 1 of them. Raises the errors of msgspec."""
    batch: Any = _decode_batch(body)
    events: tuple[Any, ...] = msgspec.structs.astuple(batch.events)
    return events[: events.index(msgspec.UNSET)] if events[-1] is msgspec.UNSET else events


async def _tell_events_apart(body: bytes) -> Sequence[msgspec.Raw] | None:
    """Split a body that is not JSON into its events; None if the fault is not only inside of events."""
    batch = await split_batch(body, MAX_EVENTS)
    if batch is None:
        return None
    if len(batch.events) <= MAX_EVENTS:
        await asyncio.sleep(0)  # the envelope may be large, too
        try:
            _raw_events(batch.envelope)
        except UNREADABLE:
            return None
    return [msgspec.Raw(event) for event in batch.events]


def _refuse_type(body: bytes) -> NoReturn:
    """Raise the error of a body without an array of events. No value is decoded, because that would take long."""
    try:
        if not body.lstrip().startswith(b"{"):
            raise BadRequest(f"expected a JSON object, got {_type_name(_decode_raw(body))}", code="not_an_object")
        batch: Any = _decode_any_batch(body)
    except UNREADABLE as error:
        raise unreadable(error, body) from None
    if not memoryview(batch.events):
        raise _wrong_batch("/events", "required, but missing", "required")
    raise _wrong_batch("/events", f"expected array, got {_type_name(batch.events)}", "type")


def _type_name(value: msgspec.Raw) -> str:
    return _TYPE_NAMES.get(bytes(memoryview(value)[:1]), "number")


def _wrong_batch(pointer: str, message: str, reason: str) -> BadRequest:
    return BadRequest(
        f"{pointer}: {message}",
        code="invalid_envelope",
        errors=[SchemaViolation(pointer, message)],
        fault=SchemaFault(pointer, reason),
    )
