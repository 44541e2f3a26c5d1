"""Reads the bodies of batches and of the requests of an intake: the credential, the envelope and the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ingestd.api.errors import TooLarge
from ingestd.api.events import Principal, Request
from ingestd.api.intake import Intake, Translation
from ingestd.scheduling.room import Place
from ingestd.support.json_text import decode_json
from ingestd.validation.batch_parser import Batch, BatchParser
from ingestd.validation.payload_schemas import PayloadSchemas
from ingestd.validation.validator import UNREADABLE, check_depth, unreadable

from .own_format import OwnBatches, check_batch

__all__ = ["BatchReader", "IntakeReader"]

_MAX_ON_LOOP = 64 * 1024  # bytes of a body that is unpacked on the event loop
_MAX_SEARCHED = 512 * 1024  # bytes of a batch in which a credential is found
_MAX_MESSAGE = 32 * 1024  # bytes of a message in which a credential is found
_MAX_CREDENTIAL = 1024  # bytes
_MAX_MEMBER = 8 * 1024  # bytes of a member of the envelope

# An intake may copy the envelope into each of thousands of events. A batch may become this many times as large by that,
# and larger by so many bytes for each message.
_GROWTH = 4
_SMALL_ENVELOPE = 2 * 1024


class BatchReader:
    """Reads the batches of the daemon's own endpoints."""

    def __init__(self, parser: BatchParser | None) -> None:
        """Without a parser each body is a single message."""
        self._parser = parser

    async def find_credential(self, request: Request, place: Place) -> None:
        """Set the credential of the request, if it is not where `Request.bearer` finds it."""

    async def read(self, request: Request, place: Place, principal: Principal) -> Batch | None:
        """Split the body into its messages; None for a single message.

        Raises `NoRoom`, `BadRequest` for a body of another form, and `TooLarge`.
        """
        if self._parser is None:
            return None
        async with place.reading(principal) as steps:
            batch = await self._parser.parse(request.body, steps)
        batch = self._check(request, batch)
        request.events = max(1, len(batch.events))  # an empty batch is a request, too
        place.take(len(request.body), principal, events=request.events)
        return batch

    def _check(self, request: Request, batch: Batch) -> Batch:
        check_batch(request.endpoint, batch.envelope)
        return batch

    def translation(self, request: Request, principal: Principal, batch: Batch | None) -> Translation:
        assert batch is not None
        return OwnBatches(request.endpoint, request.received_at, batch.envelope)


class IntakeReader(BatchReader):
    """Reads the requests of an intake on routes whose bodies have the array `batch`, or are one message (None).

    A credential is searched without decoding anything else: anybody may have sent the body.
    """

    def __init__(self, intake: Intake, batch: str | None, keys: frozenset[str], *, max_batch_body: int) -> None:
        """`keys` are all keys of events. Raises `ConfigError` for a schema of the intake that cannot be compiled."""
        self._intake = intake
        self._schemas = PayloadSchemas(intake)
        self._keys = keys
        self._max_batch_body = max_batch_body
        self._names = intake.credential_members
        self._quoted = [f'"{name}"'.encode() for name in self._names]
        fields = [(f"field_{number}", Raw, Raw()) for number in range(len(self._names))]
        renamed = {f"field_{number}": name for number, name in enumerate(self._names)}
        self._decode = msgspec.json.Decoder(msgspec.defstruct("_Message", fields, rename=renamed)).decode
        parser = None
        if batch is not None:
            parser = BatchParser(batch, least=0, most=intake.max_messages, envelope=intake.envelope)
            # The first message may have the credential, too.
            first = msgspec.defstruct("_First", [("first", Raw, Raw())], array_like=True, frozen=True)
            renamed["messages"] = batch
            of_batch = msgspec.defstruct("_Credential", [*fields, ("messages", first, first())], rename=renamed)
            self._decode_batch = msgspec.json.Decoder(of_batch).decode
        super().__init__(parser)

    async def find_credential(self, request: Request, place: Place) -> None:
        """Set the credential of the request. The body is read only if headers and query have none."""
        credential = self._intake.credential(request, None)
        if credential is None and self._names:
            async with place.reading():
                credential = await self._search_body(request)
        request.use_credential(credential)

    async def _search_body(self, request: Request) -> str | None:
        """The credential in the body, unless that takes long."""
        is_packed = bool(request.headers.get("Content-Encoding"))
        if request.small_body(_MAX_ON_LOOP if is_packed else _MAX_SEARCHED) is None:
            if not is_packed:
                return None
            await request.load_body()
        try:
            return self._find_credential(request, request.body)
        except UNREADABLE:
            return None  # it is refused later, when its sender is known

    def _find_credential(self, request: Request, body: bytes) -> str | None:
        if len(body) > (_MAX_MESSAGE if self._parser is None else _MAX_SEARCHED):
            return None
        if not any(name in body for name in self._quoted):  # parsing takes fifty times as long
            return None
        if self._parser is None:
            return self._credential(request, msgspec.structs.astuple(self._decode(body)))
        *members, messages = msgspec.structs.astuple(self._decode_batch(body))
        credential = self._credential(request, members)
        if credential is None and 0 < len(first := bytes(messages.first)) <= _MAX_MESSAGE:
            return self._credential(request, msgspec.structs.astuple(self._decode(first)))
        return credential

    def _credential(self, request: Request, members: Sequence[Raw]) -> str | None:
        found = {
            name: msgspec.json.decode(raw)
            for name, raw in zip(self._names, members, strict=True)
            if 0 < len(memoryview(raw)) <= _MAX_CREDENTIAL
        }
        return self._intake.credential(request, found) if found else None

    def _check(self, request: Request, batch: Batch) -> Batch:
        """Decode the envelope. With it in each message the batch must not be too large."""
        envelope = {name: _value(name, bytes(raw)) for name, raw in batch.envelope.items()}
        if envelope:
            self._check_copies(envelope, len(batch.events), len(request.body))
        return Batch(batch.events, envelope)

    def _check_copies(self, envelope: Mapping[str, Any], messages: int, size: int) -> None:
        # Encoded again, as records are: numbers may become longer by that.
        whole = size + (messages - 1) * len(msgspec.json.encode(envelope))
        most = min(self._max_batch_body, _GROWTH * size + _SMALL_ENVELOPE * messages)
        if whole > most:
            names = ", ".join(envelope)
            raise TooLarge(
                f"Each of the {messages} messages gets the members of the batch: {names}. With them the batch has"
                f" {whole} bytes, and {most} are accepted."
            )

    def translation(self, request: Request, principal: Principal, batch: Batch | None) -> Translation:
        begun = self._intake.begin(request, principal, {} if batch is None else batch.envelope, self._keys)
        begun.check = self._schemas.check
        return begun


def _value(name: str, text: bytes) -> Any:
    """The value of a member of the envelope. Raises `BadRequest`, `TooLarge`."""
    if len(text) > _MAX_MEMBER:
        raise TooLarge(f"The member {name} of the batch is larger than {_MAX_MEMBER} bytes.")
    try:
        value = decode_json(text)
    except UNREADABLE as error:
        raise unreadable(error, text) from None
    check_depth(value)
    return value
