"""Intakes: a plugin takes requests in another wire format, and the daemon processes them like its own.

A plugin has the format: the paths, the place of the credential, what a message means, and the form of the answer. The
daemon does all else: limits, admission, JSON, validation, storage, metrics, the access log and CORS.
examples/hooks/register_intakes.py is an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from ingestd.support.ids import named_uuid

from .errors import Refused
from .events import Endpoint, Principal, Request, Session

__all__ = ["MOST_MESSAGES", "Intake", "Message", "Route", "Translation", "visitor_of_user"]

MOST_MESSAGES = 64
"""The number of messages that one message of a caller may become."""


def visitor_of_user(tenant: str, user_id: str) -> str:
    """The `anonymousId` of a user's events that name no visitor: the same in each intake.

    Give such a message `links`, so that the visitor belongs to the user. Do not use it for an id in
    `Daemon.unusable_ids`: many people have it.
    """
    return named_uuid("visitor of user", tenant, user_id)


class Route(NamedTuple):
    """A path of an intake. With a trailing slash it is the same path.

    A path with `batch` takes many messages: `batch` names the member of the body that is their array. Without `batch`
    the body is one message. `name` is for the intake alone.

    A path with `answer` takes no messages. It answers anybody, 200 with the JSON that `answer` returns. `answer` gets
    the parts of the path that stand in braces: `/projects/{key}/settings`.
    """

    path: str
    name: str = ""
    batch: str | None = None
    method: Literal["GET", "POST"] = "POST"
    answer: Callable[[Mapping[str, str]], bytes] | None = None


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message, as a request to ingestd's own endpoints would have it."""

    kind: Literal["event", "identify"]
    body: dict[str, Any]
    """The body in the form of `/track` or `/identify/public`. The daemon validates it."""
    at: int | None = None
    """The time of the event, in milliseconds. None: the `timestamp` of the body counts, if it has one.

    The rules for `timestamp` hold for either: a time in the future becomes the time of receipt.
    """
    has_schema: bool = True
    """False: `key` may be any text, and `data` any object. `ingestd_events_total` counts it without its key."""
    links: bool = False
    """Whether an event links its visitor to its user, as an identify request does.

    This is for a visitor whose id was derived from the user, since the caller named no visitor.
    """
    relayed: bool = False
    """Whether a backend sent the message. Then the client's address and user agent are not the visitor's."""
    texts_as_numbers: bool = False
    """Whether a plain decimal as text ("19.90") is a number where the schema of the key expects one.

    It is read as the JSON number of the same characters. Texts of any other form are faults, as in other requests.
    """
    received_at: int | None = None
    """For a message from a file: the time of its first receipt, in milliseconds. None: it is unknown."""


class Translation(ABC):
    """Translates the messages of one request, and their results into its answer."""

    check: Callable[[str, dict[str, Any]], None]
    """`check(name, message)` raises `BadRequest` for a message that does not meet this one of `Intake.schemas`.

    The daemon sets it before the first `read`. The error has the places of all faults.
    """
    sender: Principal | None = None
    """The sender of messages from files. None: anybody may have sent them, so their events are not signed."""

    @abstractmethod
    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message | Sequence[Message]:
        """Translate the message with this index. `raw` is its JSON. The method may change `message` and return it.

        It is called once for each message, in order, and must not block. Raise `BadRequest` to refuse the message; the
        other messages are stored all the same. A message that is not a JSON object, or too large, is refused before.

        A message may become several, up to `MOST_MESSAGES`: the order of a shop is an order, and traits of its
        customer. They are stored in their order in one commit, and each is validated and counted. If one is refused,
        the others are stored all the same, and the message has that refusal as its result. A message that becomes none
        is counted as `dropped`. Give each of several a `messageId` of its own, so that a repetition is stored once.
        """

    def pointer(self, index: int, pointer: str) -> str:
        """The place in a message as it was sent, for a place in the translated body. Both are JSON pointers."""
        return pointer

    @abstractmethod
    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        """Make the JSON of the answer 200. `results` has the session or the refusal of each message, in order.

        A message that became several has their refusal with the highest status, or else the session of the first one.
        Return a refusal to answer the whole request with it instead, such as a 503 for a message that the caller should
        send again. The messages stay counted and stored as they are.
        """


class Intake(ABC):
    """A wire format with its paths. `register_intakes` registers an instance."""

    endpoint: ClassVar[Endpoint]
    """The label of its requests in metrics, records and logs: `Endpoint("partner", is_public=True)`.

    A public endpoint takes public keys, like `/track`. Any other one is like `/customer-events`: it takes server keys
    with a signature and the permission `ADMIN` in the app `CRM`.
    """
    routes: Sequence[Route]
    request_headers: Sequence[str] = ()
    """Request headers that browsers may send from other origins, beside those of `[http] allowed_headers`."""
    envelope: Sequence[str] = ()
    """Names of the members of a batch, beside its array, that the intake reads. Each may have 8 KiB.

    `read` may copy them into each message. So a batch counts as if each message had all of them itself. The daemon
    answers 413 if it has more than `[http] max_batch_body` then, or more than four times its size and 2 KiB for each
    message.
    """
    credential_members: Sequence[str] = ()
    """Names of the members that `credential` reads in a body or in its first message. Each may have 1 KiB.

    The daemon decodes nothing else of a body whose sender it does not know. Without such names it does not read it.
    """
    schemas: Mapping[str, Mapping[str, Any]] = {}
    """JSON Schemas (draft 2020-12) of messages by a name, for `Translation.check`. They refer to no other file."""
    max_messages: int = 1000
    """The largest number of messages in a batch."""

    def check(self, keys: frozenset[str]) -> None:  # noqa: B027 - optional
        """Raise `ConfigError` if the options of the intake do not fit these event keys.

        Called at each start and each reload, before the keys come into force.
        """

    @abstractmethod
    def credential(self, request: Request, body: Mapping[str, Any] | None) -> str | None:
        """The key that the request names, or None. `authenticate` hooks get it from `request.bearer()`.

        Called with None as `body`, to look at headers and `request.query`. If it returns None, it is called with the
        `credential_members` that the body has, and then with those of the first message. The body is read for this
        only if it has at most 512 KiB, and the message only if it has at most 32 KiB: the sender is not known yet. So
        anybody can have this called, and it must take microseconds.
        """

    @abstractmethod
    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        """Begin to read a request of a known sender. `keys` are the event keys in force."""

    def begin_import(self, tenant: str, keys: frozenset[str]) -> Translation | None:
        """Begin to read messages from files, for `ingestd events import`. None: not for this tenant.

        `read` is called for the messages of many files, and the index counts them all. So keep nothing for each of
        them. A message must say its time. `answer` is not called.
        """
        return None

    def tenant_of(self, route: Route) -> str | None:
        """The tenant of all requests on a route; None if their credential says it. `ingestd webhooks test` uses it."""
        return None

    def problem(self, refused: Refused) -> Mapping[str, Any]:
        """Further members of the problem document (RFC 9457) with which a request is refused."""
        return {}
