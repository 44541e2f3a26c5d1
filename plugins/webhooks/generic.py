"""A webhook of any platform: the configuration says where a payload has the key, the ids and the data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import field

from ingestd.api.errors import BadRequest, ConfigError
from ingestd.api.events import Endpoint, Request
from ingestd.api.intake import Message

from .payloads import instant, objects, text_of
from .webhook import Check, Encoding, Webhook, WebhookOptions

__all__ = ["Generic", "Pointer"]

_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_IDS = frozenset(["sku", "ean"])
_SECONDS = 100_000_000_000
"""A number below it is a time in seconds, and any other one a time in milliseconds."""


class Pointer(str):
    """A JSON pointer (RFC 6901) into a payload, such as `/order/id`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> Pointer:
        """Raises `ValueError`."""
        if not isinstance(text, str) or not text.startswith("/") or re.search("~(?![01])", text):
            raise ValueError("expected a JSON pointer, such as /order/id, in which ~0 stands for ~ and ~1 for /")
        return cls(text)

    def of(self, payload: Any) -> Any:
        """The value at this place, or None."""
        for token in self[1:].split("/"):
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(payload, dict):
                payload = payload.get(name)
            elif isinstance(payload, list) and _INDEX.fullmatch(name) and int(name) < len(payload):
                payload = payload[int(name)]
            else:
                return None
        return payload


class Generic(Webhook):
    class Options(WebhookOptions, kw_only=True):
        header: str
        key: str
        message_id: Pointer
        type: Literal["generic"] = "generic"
        encoding: Encoding = "hex"
        prefix: str = ""
        keys: dict[str, str] = field(default_factory=dict)
        anonymous_id: Pointer | None = None
        user_id: Pointer | None = None
        timestamp: Pointer | None = None
        data: dict[str, Pointer] = field(default_factory=dict)
        products: Pointer | None = None
        product: dict[str, Pointer] = field(default_factory=dict)

    endpoint = Endpoint("webhook", is_public=False)

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._options = options
        self._key = Pointer.parse(options.key) if options.key.startswith("/") else None
        place = f"plugins.webhooks.{name}"
        if self._key is None and options.keys:
            raise ConfigError(f"{place}.keys: key is an event key, and no pointer; remove one of them")
        if (options.products is None) != (not options.product):
            raise ConfigError(f"{place}.products: products and product belong together; give both or neither")

    def check_keys(self, keys: frozenset[str]) -> None:
        options, place = self._options, f"plugins.webhooks.{self.name}"
        if self._key is None and options.key not in keys:
            raise ConfigError(f"{place}.key: expected a JSON pointer or an event key, got {options.key!r}")
        for named, key in options.keys.items():
            if key not in keys:
                raise ConfigError(f"{place}.keys.{named!r}: {key!r} is no event key")

    def is_signed(self, request: Request, body: bytes) -> bool:
        given = (request.headers.get(self._options.header) or "").strip()
        prefix = self._options.prefix
        signature = given.removeprefix(prefix)
        return given.startswith(prefix) and self.has_signature(body, [signature], self._options.encoding)

    def topic(self, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
        return self._options.key if self._key is None else text_of(self._key.of(payload)) or ""

    def read(self, topic: str, headers: Mapping[str, str], payload: dict[str, Any], check: Check) -> Sequence[Message]:
        options = self._options
        key = self._options.keys.get(topic) if options.keys else topic
        if key is None:  # the platform tells of other things, too
            return ()
        message_id = text_of(options.message_id.of(payload))
        if message_id is None:
            raise BadRequest.of_member(str(options.message_id), "expected the id of the message", "required")
        data = _members(options.data, payload)
        if options.products is not None:
            data["products"] = [_members(options.product, item) for item in objects(options.products.of(payload))]
        visitor = options.anonymous_id and options.anonymous_id.of(payload)
        user = options.user_id and options.user_id.of(payload)
        who = self.who(visitor, user, f"{self.name} {message_id}")
        at = None if options.timestamp is None else _time(options.timestamp.of(payload))
        return [self.event(key, data, who, f"{self.name} {message_id}", at)]


def _members(pointers: Mapping[str, Pointer], payload: Any) -> dict[str, Any]:
    """The members that have a value. An id is text."""
    found = {name: pointer.of(payload) for name, pointer in pointers.items()}
    return {
        name: (text_of(value) or value) if name.endswith("_id") or name in _IDS else value
        for name, value in found.items()
        if value is not None
    }


def _time(value: Any) -> int | None:
    """The milliseconds of an RFC 3339 time, or of a number of seconds or milliseconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1000) if abs(value) < _SECONDS else int(value)
    return instant(value)
