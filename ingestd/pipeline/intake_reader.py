"""Reads a request of an intake: its credential, its envelope and its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from msgspec import Raw

from ingestd.api.errors import TooLarge
from ingestd.api.events import Principal, Request
from ingestd.api.intake import Intake
from ingestd.support.json_text import decode_json
from ingestd.validation.validator import UNREADABLE, check_depth, unreadable

from .batch_parser import BatchParser
from .pace import Steps

__all__ = ["IntakeReader", "IntakeRequest", "Reading"]

_MAX_ON_LOOP = 64 * 1024  # bytes of a body that is unpacked on the event loop
_MAX_SEARCHED = 512 * 1024  # bytes of a batch in which a credential is found
_MAX_MESSAGE = 32 * 1024  # bytes of a message in which a credential is found
_MAX_CREDENTIAL = 1024  # bytes
_MAX_MEMBER = 8 * 1024  # bytes of a member of the envelope

# An intake may copy the envelope into each of thousands of events. A batch may become this many times as large by that,
# and larger by so many bytes for each message.
_GROWTH = 4
_SMALL_ENVELOPE = 2 * 1024


Reading = Callable[[Principal | None], AbstractAsyncContextManager[Steps]]
"""The body is decoded and split in this context. Its argument is the sender, if known."""


class IntakeReader:
    """Reads the requests of an intake. It keeps a parser for each name that an array of messages has."""

    def __init__(self, intake: Intake, *, max_batch_body: int) -> None:
        self.intake = intake
        self._max_batch_body = max_batch_body
        self._parsers: dict[str, BatchParser] = {}
        self._finders: dict[str | None, _CredentialFinder] = {None: _CredentialFinder(intake, None)}
        for route in intake.routes:
            if route.batch is not None and route.batch not in self._parsers:
                self._parsers[route.batch] = BatchParser(
                    route.batch, least=0, most=intake.max_messages, envelope=intake.envelope
                )
                self._finders[route.batch] = _CredentialFinder(intake, route.batch)

    def begin(self, request: Request, reading: Reading) -> IntakeRequest:
        assert request.route is not None
        name = request.route.batch
        parser = None if name is None else self._parsers[name]
        return IntakeRequest(
            request, self.intake, parser, self._finders[name], reading, max_batch_body=self._max_batch_body
        )


class _CredentialFinder:
    """Finds the members of a body that may have a credential. It decodes nothing else: anybody may have sent the body.

    `batch` is the name of the array of messages. Then the first message may have these members, too.
    """

    def __init__(self, intake: Intake, batch: str | None) -> None:
        self._intake = intake
        self._names = intake.credential_members
        self._quoted = [f'"{name}"'.encode() for name in self._names]
        fields = [(f"field_{number}", Raw, Raw()) for number in range(len(self._names))]
        renamed = {f"field_{number}": name for number, name in enumerate(self._names)}
        self._decode = msgspec.json.Decoder(msgspec.defstruct("_Message", fields, rename=renamed)).decode
        self._decode_batch = None
        if batch is not None:
            first = msgspec.defstruct("_First", [("first", Raw, Raw())], array_like=True, frozen=True)
            renamed["messages"] = batch
            of_batch = msgspec.defstruct("_Credential", [*fields, ("messages", first, first())], rename=renamed)
            self._decode_batch = msgspec.json.Decoder(of_batch).decode

    def find(self, request: Request) -> str | None:
        body = request.body
        if len(body) > (_MAX_MESSAGE if self._decode_batch is None else _MAX_SEARCHED):
            return None
        if not any(name in body for name in self._quoted):  # parsing takes fifty times as long
            return None
        try:
            if self._decode_batch is None:
                return self._ask(request, msgspec.structs.astuple(self._decode(body)))
            *members, messages = msgspec.structs.astuple(self._decode_batch(body))
            credential = self._ask(request, members)
            if credential is None and 0 < len(first := bytes(messages.first)) <= _MAX_MESSAGE:
                return self._ask(request, msgspec.structs.astuple(self._decode(first)))
        except UNREADABLE:
            return None  # it is refused later, when its sender is known
        else:
            return credential

    def _ask(self, request: Request, members: Sequence[Raw]) -> str | None:
        found = {
            name: msgspec.json.decode(raw)
            for name, raw in zip(self._names, members, strict=True)
            if 0 < len(memoryview(raw)) <= _MAX_CREDENTIAL
        }
        return self._intake.credential(request, found) if found else None


class IntakeRequest:
    def __init__(
        self,
        request: Request,
        intake: Intake,
        parser: BatchParser | None,
        finder: _CredentialFinder,
        reading: Reading,
        *,
        max_batch_body: int,
    ) -> None:
        self._request = request
        self._max_batch_body = max_batch_body
        self._intake = intake
        self._parser = parser
        self._finder = finder
        self._reading = reading
        self.messages: Sequence[Raw] | None = None
        """The messages of a batch. None: the body is one message."""
        self.envelope: Mapping[str, Any] = {}

    async def find_credential(self) -> None:
        """Set the credential of the request. The body is read only if headers and query have none."""
        credential = self._intake.credential(self._request, None)
        if credential is None and self._intake.credential_members:
            async with self._reading(None):
                credential = await self._search_body()
        self._request.use_credential(credential)

    async def _search_body(self) -> str | None:
        """The credential in the body, unless that takes long: anybody may have sent it."""
        request = self._request
        is_packed = bool(request.headers.get("Content-Encoding"))
        if request.small_body(_MAX_ON_LOOP if is_packed else _MAX_SEARCHED) is None:
            if not is_packed:
                return None
            await request.load_body()
        return self._finder.find(request)

    async def read(self, principal: Principal) -> None:
        """Split the body into its messages.

        Raises `BadRequest` for a body of another form, and `TooLarge` if copies of the envelope make it too large.
        """
        if self._parser is None:
            return
        async with self._reading(principal) as steps:
            batch = await self._parser.parse(self._request.body, steps)
        self.messages, self.envelope = batch.events, _decode(batch.envelope)
        self._check_copies(len(self.messages), len(self._request.body))
        self._request.events = max(1, len(self.messages))  # an empty batch is a request, too

    def _check_copies(self, messages: int, size: int) -> None:
        """A batch counts as if each message had the members of the envelope itself."""
        if not self.envelope:
            return
        # Encoded again, as records are: numbers may become longer by that.
        whole = size + (messages - 1) * len(msgspec.json.encode(self.envelope))
        most = min(self._max_batch_body, _GROWTH * size + _SMALL_ENVELOPE * messages)
        if whole > most:
            names = ", ".join(self.envelope)
            raise TooLarge(
                f"Each of the {messages} messages gets the members of the batch: {names}. With them the batch has"
                f" {whole} bytes, and {most} are accepted."
            )


def _decode(envelope: Mapping[str, Raw]) -> Mapping[str, Any]:
    """The values of the envelope. Raises `BadRequest`, `TooLarge`."""
    decoded = {}
    for name, raw in envelope.items():
        text = bytes(raw)
        if len(text) > _MAX_MEMBER:
            raise TooLarge(f"The member {name} of the batch is larger than {_MAX_MEMBER} bytes.")
        try:
            decoded[name] = decode_json(text)
        except UNREADABLE as error:
            raise unreadable(error, text) from None
        check_depth(decoded[name])
    return decoded
