"""Splits the body of a batch into the bodies of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

import msgspec

from ingestd.api.errors import BadRequest
from ingestd.scheduling.demand import Steps

from .event_boundaries import split_batch
from .validator import UNREADABLE, unreadable

__all__ = ["MAX_EVENTS", "Batch", "BatchParser"]

MAX_EVENTS = 1000
"""The largest number of events in a batch."""

# Larger bodies may have more elements than a list of them should have.
_LARGE = 64 * 1024  # bytes

_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode

_TYPE_NAMES = {b"{": "object", b"[": "array", b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null"}


class Batch(NamedTuple):
    events: Sequence[msgspec.Raw]
    """Each is a slice of the body. The caller copies it (by `bytes`) right before it parses it, so that it is in the
    processor's cache."""
    envelope: Mapping[str, msgspec.Raw]
    """The other members of the body that the parser reads, without those that the body lacks."""


@cache
def _events(count: int) -> type[msgspec.Struct]:
    """An array of so many events, of which the decoder skips the rest.

    A list would be built whole before it is counted, and a few megabytes have room for millions of elements.
    """
    numbered = [(f"event_{number}", msgspec.Raw, msgspec.UNSET) for number in range(count)]
    return msgspec.defstruct("_Events", numbered, array_like=True)


class BatchParser:
    """Parses valid batches at once. A faulty batch takes many times as long, so these are parsed one at a time."""

    def __init__(
        self, member: str = "events", *, least: int = 1, most: int = MAX_EVENTS, envelope: Sequence[str] = ()
    ) -> None:
        """`member` names the array of events, with `least` to `most` of them. `envelope` names the other members."""
        self._member = member
        self._least = least
        self._most = most
        self._envelope = tuple(envelope)
        self._decode_large = self._decoder(_events(most + 1))
        self._decode_small = self._decoder(list[msgspec.Raw])
        # For batches of the wrong shape: any type of the array, and any type of the body.
        self._decode_any = self._decoder(msgspec.Raw, msgspec.Raw())
        self._one_at_a_time = asyncio.Lock()

    def _decoder(self, events: Any, default: Any = msgspec.NODEFAULT) -> Callable[[bytes], Any]:
        fields = [(self._member, events, default)]
        fields += [(name, msgspec.Raw, msgspec.Raw()) for name in self._envelope]
        renamed = {f"field_{number}": name for number, (name, _, _) in enumerate(fields)}
        struct = msgspec.defstruct(
            "_Batch", [(f"field_{number}", *rest) for number, (_, *rest) in enumerate(fields)], rename=renamed
        )
        return msgspec.json.Decoder(struct).decode

    async def parse(self, body: bytes, steps: Steps | None = None) -> Batch:
        """Split the body into the bodies of its events, which the caller parses. Raises `BadRequest` for no batch.

        `steps` are those of the work to which this belongs.
        If only the inside of some events is not JSON, this still returns all events.
        """
        try:
            batch = self.split(body)
        except UNREADABLE as error:
            async with self._one_at_a_time:
                steps = steps or Steps()
                await steps.pause()  # a large body has taken ten milliseconds so far
                if isinstance(error, msgspec.ValidationError):
                    self._refuse_type(body)
                apart = await self._tell_events_apart(body, steps)
                if apart is None:
                    raise unreadable(error, body) from None
                batch = apart
        self.check(batch)
        return batch

    def check(self, batch: Batch) -> None:
        """Raises `BadRequest` if there are too few or too many events."""
        if not self._least <= len(batch.events) <= self._most:
            found, reason = ("more", "maxItems") if batch.events else ("none", "minItems")
            raise self._wrong(f"expected {self._least} to {self._most} events, got {found}", reason)

    def split(self, body: bytes) -> Batch:
        """Split a body that is JSON. Returns at most one event more than there may be. Raises `UNREADABLE`."""
        if len(body) < _LARGE:
            events, *envelope = msgspec.structs.astuple(self._decode_small(body))
        else:
            numbered, *envelope = msgspec.structs.astuple(self._decode_large(body))
            events = msgspec.structs.astuple(numbered)
            events = events[: events.index(msgspec.UNSET)] if events[-1] is msgspec.UNSET else events
        members = zip(self._envelope, envelope, strict=True)
        return Batch(events, {name: value for name, value in members if memoryview(value)} if envelope else {})

    async def _tell_events_apart(self, body: bytes, steps: Steps) -> Batch | None:
        """Split a body that is not JSON into its events; None if the fault is not only inside of events."""
        batch = await split_batch(body, self._most, member=self._member, steps=steps)
        if batch is None:
            return None
        envelope: Mapping[str, msgspec.Raw] = {}
        if len(batch.events) <= self._most:
            await steps.pause()  # the envelope may be large, too
            try:
                envelope = self.split(batch.envelope).envelope
            except UNREADABLE:
                return None
        return Batch([msgspec.Raw(event) for event in batch.events], envelope)

    def _refuse_type(self, body: bytes) -> NoReturn:
        """Raise the error of a body without an array of events. No value is decoded, because that would take long."""
        try:
            if not body.lstrip().startswith(b"{"):
                raise BadRequest(f"expected a JSON object, got {_type_name(_decode_raw(body))}", code="not_an_object")
            events: msgspec.Raw = msgspec.structs.astuple(self._decode_any(body))[0]
        except UNREADABLE as error:
            raise unreadable(error, body) from None
        if not memoryview(events):
            raise self._wrong("required, but missing", "required")
        raise self._wrong(f"expected array, got {_type_name(events)}", "type")

    def _wrong(self, message: str, reason: str) -> BadRequest:
        return BadRequest.of_member(f"/{self._member}", message, reason)


def _type_name(value: msgspec.Raw) -> str:
    return _TYPE_NAMES.get(bytes(memoryview(value)[:1]), "number")
