"""Reads a request of an intake: its credential, its envelope and its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from msgspec import Raw

from ingestd.api.errors import BadRequest, TooLarge
from ingestd.api.events import Principal, Request
from ingestd.api.intake import Intake
from ingestd.validation.validator import UNREADABLE, check_depth, parse_body, unreadable

from .batch_parser import Batch, BatchParser
from .pace import Steps

__all__ = ["IntakeReader", "IntakeRequest", "Reading"]

_MAX_ON_LOOP = 64 * 1024  # bytes
_MAX_SEARCHED = 512 * 1024  # bytes of a batch in which a credential is found
_MAX_MESSAGE = 32 * 1024  # bytes of a message in which a credential is found
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
        for route in intake.routes:
            if route.batch is not None and route.batch not in self._parsers:
                self._parsers[route.batch] = BatchParser(
                    route.batch, least=0, most=intake.max_messages, envelope=intake.envelope
                )

    def begin(self, request: Request, reading: Reading) -> IntakeRequest:
        assert request.route is not None
        name = request.route.batch
        parser = None if name is None else self._parsers[name]
        return IntakeRequest(request, self.intake, parser, reading, max_batch_body=self._max_batch_body)


class IntakeRequest:
    def __init__(
        self, request: Request, intake: Intake, parser: BatchParser | None, reading: Reading, *, max_batch_body: int
    ) -> None:
        self._request = request
        self._max_batch_body = max_batch_body
        self._intake = intake
        self._parser = parser
        self._reading = reading
        self._batch: Batch | None = None
        self.messages: Sequence[Raw] | None = None
        """The messages of a batch. None: the body is one message."""
        self.envelope: Mapping[str, Any] = {}

    async def find_credential(self) -> None:
        """Set the credential of the request. The body is read only if headers and query have none."""
        credential = self._intake.credential(self._request, None)
        if credential is None:
            async with self._reading(None):
                credential = await self._search_body()
        self._request.use_credential(credential)

    async def _search_body(self) -> str | None:
        """The credential in the body, unless that takes long: anybody may have sent it."""
        request, intake = self._request, self._intake
        if request.small_body(_MAX_ON_LOOP) is None:
            await request.load_body()
        if len(request.body) > _MAX_SEARCHED:
            return None
        first = request.body
        if self._parser is not None:
            try:
                self._batch = self._parser.split(request.body)
            except UNREADABLE:
                return None
            credential = intake.credential(request, _decode(self._batch.envelope))
            if credential is not None:
                return credential
            first = next(map(bytes, self._batch.events), b"")
        return intake.credential(request, _parse_leniently(first)) if 0 < len(first) <= _MAX_MESSAGE else None

    async def read(self, principal: Principal) -> None:
        """Split the body into its messages.

        Raises `BadRequest` for a body of another form, and `TooLarge` if copies of the envelope make it too large.
        """
        if self._parser is None:
            return
        if self._batch is None:
            async with self._reading(principal) as steps:
                self._batch = await self._parser.parse(self._request.body, steps)
        else:
            self._parser.check(self._batch)
        self.messages, self.envelope = self._batch.events, _decode(self._batch.envelope)
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
            decoded[name] = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise unreadable(error, text) from None
        check_depth(decoded[name])
    return decoded


def _parse_leniently(message: bytes) -> Mapping[str, Any]:
    """The members of a message; none if it cannot be read. The message is refused later, when its sender is known."""
    try:
        return parse_body(message)
    except BadRequest:
        return {}
