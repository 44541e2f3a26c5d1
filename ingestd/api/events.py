"""The arguments of hooks: a request, its sender, the event, and the record made of the event."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import msgspec

from ingestd.support.ids import time_uuid
from ingestd.support.json_text import decode_json
from ingestd.support.record_head import members_reader

from .errors import TooLarge
from .imported import Imported, import_mark, original_time
from .times import format_time

if TYPE_CHECKING:
    from .intake import Intake, Route

__all__ = ["MESSAGE_LIFE", "Endpoint", "Envelope", "Event", "Principal", "Record", "Request", "Session"]

MESSAGE_LIFE = 86_400_000
"""Milliseconds for which a `messageId` is remembered, so that a copy of its message is not stored again."""


class Endpoint:
    """An operation of the API, or the intake of a plugin. Records, metrics and logs contain the `value`."""

    __slots__ = ("identifies", "identify", "is_public", "value")

    _by_value: ClassVar[dict[str, Endpoint]] = {}
    TRACK: ClassVar[Endpoint]
    CUSTOMER_EVENTS: ClassVar[Endpoint]
    IDENTIFY: ClassVar[Endpoint]
    SERVER_IDENTIFY: ClassVar[Endpoint]
    IMPORT: ClassVar[Endpoint]
    """`ingestd events import`, which takes events from files. It takes no requests."""
    BUILT_IN: ClassVar[Sequence[Endpoint]]
    """The operations of the API."""

    def __init__(
        self, value: str, *, is_public: bool, identifies: bool = False, identify: Endpoint | None = None
    ) -> None:
        """`identify` counts the identify requests of this endpoint, by default under the same value."""
        self.value = value
        self.is_public = is_public
        """Whether the endpoint takes public keys. The others require a server key and a signature."""
        self.identifies = identifies
        """Whether the endpoint takes identify requests only. Batches are an exception."""
        self.identify: Endpoint = self
        """Counts the identify requests of this endpoint."""
        if not identifies:
            self.identify = identify or Endpoint(value, is_public=is_public, identifies=True)
        self._by_value[value] = self

    @classmethod
    def of(cls, value: str) -> Endpoint:
        """The endpoint with this value."""
        return cls._by_value[value]

    def __repr__(self) -> str:
        return f"Endpoint({self.value!r})"

    def operation(self, *, batch: bool) -> str:
        """The name of the operation in logs and metrics."""
        return f"{self.value}-batch" if batch else self.value


Endpoint.IDENTIFY = Endpoint("identify", is_public=True, identifies=True)
Endpoint.SERVER_IDENTIFY = Endpoint("server-identify", is_public=False, identifies=True)
Endpoint.TRACK = Endpoint("track", is_public=True, identify=Endpoint.IDENTIFY)
Endpoint.CUSTOMER_EVENTS = Endpoint("customer-events", is_public=False, identify=Endpoint.IDENTIFY)
Endpoint.IMPORT = Endpoint("import", is_public=False)
Endpoint.BUILT_IN = (Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS, Endpoint.IDENTIFY, Endpoint.SERVER_IDENTIFY)


class _Body(Protocol):
    size: int
    """Bytes as they came."""

    def decode(self, most: int | None = None) -> bytes:
        """The content. Raises `TooLarge` if it has more than `most` bytes before or after decoding.

        Another thread may call this, so it changes nothing.
        """

    def free(self, content: bytes) -> None: ...  # only the content is needed now; raises `Unavailable` without memory


class Request:
    """One HTTP request to an ingest endpoint, as hooks see it.

    `headers.get(name)` ignores the case of the name. `body` is the content after decoding of the Content-Encoding.
    Reading `body` raises `UnsupportedEncoding`, `TooLarge` or `BadRequest` if it cannot be decoded, and `Unavailable`
    if memory for it is short. `authenticate` and `admit` can read it, later hooks cannot. `received_at` is the time of
    receipt in milliseconds. `peer` is the client's address, or empty if there is none. `id` is a UUIDv7, which the
    answer and the record contain. `size` is the number of bytes of the body as it came.

    A `batch` comes with the credentials of its endpoint, `TRACK` or `CUSTOMER_EVENTS`, and `body` is the whole batch.
    `events` is the number of its events. It is 1 until the batch has been read, and for any other request.

    `intake` and `route` are None for the daemon's own endpoints. For those of an intake, `query` is the part of the
    target behind the question mark. `batch` is False, and there may be several events all the same.
    """

    __slots__ = (
        "_body", "_content", "_credential", "batch", "endpoint", "events", "headers", "id", "intake", "peer", "query",
        "received_at", "route", "size",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: _Body | bytes,
        *,
        received_at: int,
        peer: str = "",
        id: str | None = None,
        batch: bool = False,
        intake: Intake | None = None,
        route: Route | None = None,
        query: str = "",
    ) -> None:
        self.id = id or time_uuid()
        self.endpoint = endpoint
        self.batch = batch
        self.events = 1
        self.headers = headers
        self.received_at = received_at
        self.peer = peer
        self._content = body if isinstance(body, bytes) else None
        self._body = None if isinstance(body, bytes) else body
        self.intake = intake
        self.route = route
        self.query = query
        self.size = len(body) if isinstance(body, bytes) else body.size
        self._credential: str | None = None

    @property
    def body(self) -> bytes:
        return self._take(self._received().decode()) if self._content is None else self._content

    async def load_body(self) -> bytes:
        """The body, decoded on another thread. Raises the same errors as reading `body`."""
        return self._take(await asyncio.to_thread(self._received().decode)) if self._content is None else self._content

    def small_body(self, most: int) -> bytes | None:
        """The body if it has at most `most` bytes before and after decoding, else None. It never decodes more."""
        if self._content is None:
            try:
                return self._take(self._received().decode(most))
            except TooLarge:
                return None
        return self._content if len(self._content) <= most else None

    def _received(self) -> _Body:
        if self._body is None:
            raise RuntimeError("the body of a request was read after its events had been parsed")
        return self._body

    def replace_body(self, body: bytes) -> None:
        """Parse and store this body instead, for an `authenticate` that finds another form of the body signed."""
        self._content = body

    def _take(self, content: bytes) -> bytes:
        self._received().free(content)
        self._content = content
        return content

    def drop_body(self) -> None:
        """Release the memory of the body, after its events have been read."""
        self._content = self._body = None

    def use_credential(self, credential: str | None) -> None:
        """Let `bearer` return this credential, for a request of an intake."""
        self._credential = credential

    def bearer(self) -> str | None:
        """The credential of `Authorization: Bearer …`, or None. An intake may find it elsewhere in the request."""
        if self.intake is not None:
            return self._credential
        scheme, _, credential = self.headers.get("Authorization", "").partition(" ")
        return credential.strip() or None if scheme.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request, as an `authenticate` hook found it.

    `grants` maps an app to its permissions; `/customer-events` requires `ADMIN` in `CRM`. `signed` tells whether a
    secret that is not sent proves that the body is the sender's.

    `check_event`, if given, is called for each valid event and identify request of this sender, with the body and the
    time of receipt in milliseconds. It raises `BadRequest` for an event that must not be stored. `message_life` is the
    `message_life` of the sender's events.
    """

    tenant: str
    key_id: str = field(repr=False)  # a public key is its own id
    grants: Mapping[str, frozenset[str]] = field(default_factory=dict)
    signed: bool = False
    check_event: Callable[[Mapping[str, Any], int], None] | None = field(default=None, repr=False, compare=False)
    message_life: int = MESSAGE_LIFE


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_LONGEST_ANONYMOUS_ID = 512
_LONGEST_MESSAGE_ID = 128


class Session(msgspec.Struct, frozen=True, gc=False):
    session_id: str
    is_new: bool


class Event(msgspec.Struct):
    """An event or identify request on its way to the journal. Hooks may change the values that callers chose.

    Times are in milliseconds. An identify request has no `key` and its `data` stays empty; an event has no `traits`.
    """

    id: str
    type: Literal["event", "identify"]
    tenant: str
    endpoint: Endpoint
    received_at: int
    timestamp: int
    key: str | None
    data: dict[str, Any]
    traits: dict[str, Any]
    anonymous_id: str
    user_id: str | None
    session_id: str | None
    session_is_new: bool
    dispatch_id: str | None
    message_id: str | None
    context: dict[str, Any]
    extra: dict[str, Any]
    has_visitor: bool = True
    """Whether `anonymous_id` names a visitor.

    Many clients send the same unusable id (`[ids] unusable`). Then the event has a separate session, and changes no
    state.
    """
    signed: bool = False
    """The `signed` of its `Principal`."""
    linked: bool | None = None
    """Whether the request links its visitor to its user. None until a plugin that stores links sets it."""
    links: bool = False
    """Whether an event links its visitor to its user like an identify request. Its intake derived the visitor."""
    relayed: bool = False
    """Whether a backend sent the event, so that the address and user agent of the request are not the visitor's."""
    imported: Imported | None = None
    """The origin of an event from a file. None for an event of a request."""
    message_life: int = MESSAGE_LIFE
    """Milliseconds for which a copy of the event, by its `message_id`, is not stored again."""
    schema: str | None = None
    """A hash of the schema that the event has met. None for an identify request, and an event without a schema."""

    def check_ids(self) -> None:
        """Raises `ValueError` for an id that no request may contain, because plugins may set the ids of an event."""
        for name, value, most in (
            ("anonymous_id", self.anonymous_id, _LONGEST_ANONYMOUS_ID),
            ("message_id", self.message_id, _LONGEST_MESSAGE_ID),
            ("user_id", self.user_id, None),
        ):
            if value is None and name != "anonymous_id":
                continue
            if not isinstance(value, str) or not value or (most is not None and len(value) > most):
                bound = "at least one character" if most is None else f"1 to {most} characters"
                raise ValueError(f"{name}: expected a text of {bound}")
        if self.session_id is not None and not _UUID.fullmatch(self.session_id):
            raise ValueError("session_id: expected a UUID")

    def to_record(self) -> Record:
        """The record for the journal, sinks and exports."""
        at = self.received_at
        mark: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
        if self.imported is not None:
            at, mark = self.imported.received_at, import_mark(self.imported, self.received_at)
        received_at = format_time(at)
        is_event = self.type == "event"
        members = _Members(
            self.id,
            self.type,
            self.tenant,
            self.endpoint.value,
            self.signed,
            received_at,
            received_at if self.timestamp == at else format_time(self.timestamp),
            self.key if is_event else msgspec.UNSET,
            self.data if is_event else msgspec.UNSET,
            self.anonymous_id,
            self.user_id,
            self.session_id,
            self.session_is_new,
            self.dispatch_id,
            self.message_id,
            self.context,
            self.extra,
            msgspec.UNSET if is_event else self.traits,
            msgspec.UNSET if self.linked is None else self.linked,
            mark,
            self.schema or msgspec.UNSET,
        )
        return Record(self.type, self.received_at, _encode(members))


class _Members(msgspec.Struct, rename="camel", gc=False):
    """The members of the JSON object of a record. Members without a value are omitted."""

    id: str
    type: str
    tenant: str
    endpoint: str
    signed: bool
    received_at: str
    timestamp: str
    key: str | msgspec.UnsetType | None
    data: dict[str, Any] | msgspec.UnsetType
    anonymous_id: str
    user_id: str | None
    session_id: str | None
    session_is_new: bool
    dispatch_id: str | None
    message_id: str | None
    context: dict[str, Any]
    extra: dict[str, Any]
    traits: dict[str, Any] | msgspec.UnsetType
    linked: bool | msgspec.UnsetType
    imported: dict[str, Any] | msgspec.UnsetType = msgspec.field(name="import")
    schema: str | msgspec.UnsetType


_encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The members of a record that say what it is about. A member that the record lacks is None."""

    id: str | None = None
    tenant: str | None = None
    anonymous_id: str | None = None
    """The visitor."""
    key: str | None = None
    """The event key."""


_read_envelope = members_reader(Envelope)


class Record(msgspec.Struct, frozen=True, gc=False):  # many live long, and none can be part of a cycle
    """One entry of the journal.

    `body` is one JSON object, encoded once: the journal and every sink have the same bytes. `at` is the time of receipt
    or derivation in milliseconds. `position` is its position in the journal, or 0 before it has one.
    """

    type: str
    at: int
    body: bytes
    position: int = 0

    def decode(self) -> dict[str, Any]:
        """The JSON object as Python values."""
        value: dict[str, Any] = decode_json(self.body)
        return value

    def received_at(self) -> int:
        """The time of receipt in milliseconds; of a derived record, that of the record which decided it.

        `at` is later for imported records, and for records derived from them.
        """
        at = original_time(self.body)
        return self.at if at is None else at

    def envelope(self) -> Envelope:
        """The id, tenant, visitor and event key, in a third of the time of `decode`."""
        return _read_envelope(self.body)
