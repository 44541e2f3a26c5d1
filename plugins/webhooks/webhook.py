"""A webhook of a platform: whose requests it takes, and what they mean."""

from __future__ import annotations

import base64
import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from ingestd.api.errors import ConfigError
from ingestd.api.events import MESSAGE_LIFE, Endpoint, Principal, Request
from ingestd.api.intake import Message, visitor_of_user
from ingestd.api.options import Options, Secret
from ingestd.support.ids import named_uuid
from ingestd.support.names import check_name
from ingestd.support.unusable_ids import UnusableIds

from .payloads import text_of

__all__ = ["VISITOR", "Check", "Encoding", "Webhook", "WebhookOptions", "Who"]

VISITOR = "ingestd_visitor"
"""The name under which a shop tells a platform the visitor's id: an attribute of the cart, or metadata of a payment."""

Check = Callable[[str, dict[str, Any]], None]
"""Raises `BadRequest` for a payload that does not meet one of the `schemas`."""

Encoding = Literal["base64", "hex"]
_SIGNATURE = 32  # bytes
_SHORTEST_SECRET = 8  # characters; who guesses a shorter one can send orders that supersede those of the shop
_ARRIVAL_BEFORE = 1000  # milliseconds: platforms tell where an order's customer arrived, but not when
_LONGEST_MESSAGE_ID = 128  # characters
_LONGEST_VISITOR = 512
_LIFE = 30 * MESSAGE_LIFE
"""Some platforms tell of an order with each change, and of its payment again each time."""


class WebhookOptions(Options, kw_only=True):
    """What all platforms have. `tenant` gets the events."""

    tenant: str
    secret: Secret
    previous_secret: Secret | None = None
    """It counts, too, while the platform changes its secret."""


class Who(NamedTuple):
    """Whom an event is about."""

    visitor: str
    user: str | None = None
    is_told: bool = False
    """Whether a page has told the visitor. Otherwise it stands for the user or the order."""


class Webhook(ABC):
    """One table of `[plugins.webhooks]`. `name` is the last part of its path."""

    endpoint: ClassVar[Endpoint]
    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The JSON Schemas of its payloads, for `check`."""

    has_lists: ClassVar[bool] = False
    """Whether files with the objects of its lists can be imported."""

    def __init__(self, name: str, options: WebhookOptions) -> None:
        """Raises `ConfigError` for a name or tenant that is none, and for a secret that anybody could guess."""
        place = f"plugins.webhooks.{name}"
        for where, text in ((place, name), (f"{place}.tenant", options.tenant)):
            try:
                check_name(text)
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from error
        for option in ("secret", "previous_secret"):
            secret = getattr(options, option)
            if secret is not None and len(secret.strip()) < _SHORTEST_SECRET:
                raise ConfigError(f"{place}.{option}: expected at least {_SHORTEST_SECRET} characters")
        self.name = name
        self.tenant = options.tenant
        self._secrets = [str(each) for each in (options.secret, options.previous_secret) if each is not None]
        self.principal = Principal(self.tenant, name, {"CRM": frozenset(["ADMIN"])}, signed=True, message_life=_LIFE)
        self.unusable_ids = UnusableIds()

    def check_keys(self, keys: frozenset[str]) -> None:  # noqa: B027 - a platform's keys are built in
        """Raise `ConfigError` for an event key that there is not."""

    @abstractmethod
    def topic(self, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
        """What the request is about, for `read` and for the log."""

    @abstractmethod
    def is_signed(self, request: Request, body: bytes) -> bool:
        """Whether the platform has signed the body."""

    def has_signature(self, body: bytes, given: Sequence[str], encoding: Encoding) -> bool:
        """Whether one of the given texts is the HMAC-SHA256 of exactly these bytes, made with one of the secrets."""
        decoded = [each for each in (_decode(text, encoding) for text in given) if each is not None]
        if not decoded:
            return False
        made = [hmac.digest(secret.encode(), body, "sha256") for secret in self._secrets]
        return any(hmac.compare_digest(one, another) for one in decoded for another in made)

    @abstractmethod
    def read(self, topic: str, headers: Mapping[str, str], payload: dict[str, Any], check: Check) -> Sequence[Message]:
        """The events of a payload; none for a topic that means nothing to a shop's events. Raises `BadRequest`."""

    def read_stored(self, payload: dict[str, Any], check: Check) -> Sequence[Message]:
        """The events of an object of the platform's lists, if it `has_lists`."""
        raise NotImplementedError

    def who(self, visitor: Any, user: Any, otherwise: str) -> Who:
        """The visitor that a page has told, else the visitor of the user, else one that only `otherwise` names."""
        user = text_of(user)
        if user is not None and user in self.unusable_ids:
            user = None
        told = text_of(visitor)
        if told is not None and len(told) <= _LONGEST_VISITOR and told not in self.unusable_ids:
            return Who(told, user, is_told=True)
        return Who(visitor_of_user(self.tenant, user) if user else self._id(otherwise, _LONGEST_VISITOR), user)

    def _id(self, name: str, longest: int) -> str:
        """An id by this name. A long name is not cut: others may begin like it."""
        made = f"{self.endpoint.value} {name}"
        return made if len(made) <= longest else named_uuid("webhook", made)

    def event(
        self,
        key: str,
        data: dict[str, Any],
        who: Who,
        message_id: str,
        at: int | None,
        *,
        context: dict[str, Any] | None = None,
    ) -> Message:
        body = {
            "key": key, "data": data, "anonymousId": who.visitor, "userId": who.user, "context": context or {},
            "messageId": self._id(message_id, _LONGEST_MESSAGE_ID),
        }  # fmt: skip
        links = who.user is not None and not who.is_told
        return Message("event", body, at, links=links, relayed=True, texts_as_numbers=True)

    def identify(self, who: Who, traits: dict[str, Any], message_id: str, at: int | None) -> Message:
        """Traits of a user, by the visitor that stands for the user: what a page tells must not link it to a user."""
        assert who.user is not None
        body = {
            "anonymousId": visitor_of_user(self.tenant, who.user), "userId": who.user, "traits": traits,
            "messageId": self._id(message_id, _LONGEST_MESSAGE_ID),
        }  # fmt: skip
        return Message("identify", body, at, relayed=True)

    def arrival(self, who: Who, order_id: str, url: str, referrer: Any, ordered_at: int | None) -> Sequence[Message]:
        """How the customer came, for an order whose visitor no page has told. Its time is a second before the order."""
        if who.is_told or ordered_at is None or not url:
            return ()
        page = {"url": url, "referrer": referrer} if isinstance(referrer, str) and referrer else {"url": url}
        at = ordered_at - _ARRIVAL_BEFORE
        return [self.event("Page View", {}, who, f"arrival {order_id}", at, context={"page": page})]


def _decode(signature: str, encoding: Encoding) -> bytes | None:
    """The bytes of a signature; None for a text that is none."""
    try:
        decoded = base64.b64decode(signature, validate=True) if encoding == "base64" else bytes.fromhex(signature)
    except ValueError:
        return None
    return decoded if len(decoded) == _SIGNATURE else None
