"""The paths of the intake, and where a request has its write key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from ingestd.api.errors import BadRequest, ConfigError, Refused
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.intake import Intake, Message, Route
from ingestd.api.times import parse_time
from ingestd.support.unusable_ids import UnusableIds

from .names import EventNames
from .translation import OK, SegmentTranslation

__all__ = ["SegmentIntake", "StoredMessages", "settings_of_project", "source_config", "take_metrics"]


def take_metrics(parameters: Mapping[str, str]) -> bytes:
    """For analytics.js, which reports figures about itself. They are dropped."""
    return OK


def settings_of_project(parameters: Mapping[str, str]) -> bytes:
    """For analytics.js with `cdnURL`: one integration, which sends to its `apiHost`, and no reports about itself."""
    return msgspec.json.encode({
        "integrations": {"Segment.io": {"apiKey": parameters["key"]}},
        "plan": {"track": {"__default": {"enabled": True, "integrations": {}}}},
        "metrics": {"sampleRate": 0},
    })  # fmt: skip


def source_config(parameters: Mapping[str, str]) -> bytes:
    """For RudderStack's SDK: a source without destinations, and without reports about itself."""
    off = {"enabled": False}
    return msgspec.json.encode({
        "source": {
            "id": "ingestd",
            "name": "ingestd",
            "enabled": True,
            "workspaceId": "ingestd",
            "config": {"statsCollection": {"errors": off, "metrics": off}},
            "destinations": [],
        },
    })  # fmt: skip


_LONGEST_CREDENTIAL = 1024  # characters

_TYPES = ("track", "page", "screen", "identify", "group", "alias")


def _routes() -> Iterator[Route]:
    for type_ in _TYPES:
        yield Route(f"/v1/{type_}", type_)
    for version in ("/v1", ""):  # analytics.js and the SDKs of apps are given a host with or without `/v1`
        for type_ in _TYPES:
            yield Route(f"{version}/{type_[0]}", type_)
        for path in ("batch", "b", "import"):
            yield Route(f"{version}/{path}", batch="batch")
        yield Route(f"{version}/m", answer=take_metrics)
    yield Route("/beacon/v1/batch", batch="batch")
    yield Route("/v1/projects/{key}/settings", method="GET", answer=settings_of_project)
    yield Route("/sourceConfig", method="GET", answer=source_config)


class SegmentIntake(Intake):
    endpoint = Endpoint("segment", is_public=True)
    routes = tuple(_routes())
    request_headers = (
        "X-Retry-Count", "AnonymousId", "SentAt", "RSA-Retry-Attempt", "RSA-Retry-Reason", "RSA-Since-First-Attempt",
        "RSA-Since-Last-Attempt", "RSA-Recovered",
    )  # fmt: skip
    envelope = ("sentAt", "context")
    credential_members = ("writeKey",)
    max_messages = 2500

    def __init__(self, names: Mapping[str, str], *, accepts_unknown: bool) -> None:
        self._configured = names
        self._accepts_unknown = accepts_unknown
        self._names_for = lru_cache(maxsize=2)(lambda keys: EventNames(keys, names))
        self.unusable_ids = UnusableIds()

    def check(self, keys: frozenset[str]) -> None:
        for name, key in self._configured.items():
            if key not in keys:
                raise ConfigError(f"plugins.segment.names.{name!r}: {key!r} is no event key")

    def credential(self, request: Request, body: Mapping[str, Any] | None) -> str | None:
        if body is None:
            return _basic(request.headers.get("Authorization", "")) or _in_query(request.query)
        key = body.get("writeKey")
        return key if isinstance(key, str) and key else None

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> SegmentTranslation:
        assert request.route is not None
        return SegmentTranslation(
            principal.tenant,
            envelope,
            self._names_for(keys),
            self.unusable_ids,
            received_at=request.received_at,
            type_=request.route.name or None,
            # Browsers send `Origin`. Any other sender may be a backend, with an address that is not the visitor's.
            relayed=request.headers.get("Origin") is None,
            accepts_unknown=self._accepts_unknown,
        )

    def begin_import(self, tenant: str, keys: frozenset[str]) -> SegmentTranslation:
        return StoredMessages(
            tenant, {}, self._names_for(keys), self.unusable_ids,
            received_at=0, type_=None, relayed=True, accepts_unknown=self._accepts_unknown,
        )  # fmt: skip

    def problem(self, refused: Refused) -> Mapping[str, Any]:
        return {"error": refused.detail}


def _basic(authorization: str) -> str | None:
    """The user of HTTP Basic. The password stays unread: it is empty."""
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() != "basic" or len(text) > _LONGEST_CREDENTIAL:
        return None
    try:
        decoded = base64.b64decode(text.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded.partition(":")[0] or None


def _in_query(query: str) -> str | None:
    # Anybody may send a query, and `parse_qs` takes milliseconds for a long one.
    _, named, rest = f"&{query}".partition("&writeKey=")
    key = rest.partition("&")[0]
    return unquote_plus(key) or None if named and len(key) <= _LONGEST_CREDENTIAL else None


class StoredMessages(SegmentTranslation):
    """Translates messages that were received long ago, mostly by another server."""

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        self._said.clear()  # there may be millions of messages
        received_at = _take_instant(message, "receivedAt")
        if received_at is not None:
            self._received_at = received_at
            if isinstance(message.get("timestamp"), str) and parse_time(message["timestamp"]) is not None:
                message.pop("sentAt", None)  # the server has corrected this time by the clock of the client
        else:
            message.pop("sentAt", None)  # without a time of receipt it does not tell how wrong the clock was
        read = super().read(index, message, raw)
        at = received_at if read.at is None else read.at
        return msgspec.structs.replace(read, at=at, received_at=received_at)


def _take_instant(message: dict[str, Any], name: str) -> int | None:
    text = message.get(name)
    if text is None:
        return None
    instant = parse_time(text) if isinstance(text, str) else None
    if instant is None:
        raise BadRequest.of_member(f"/{name}", "expected an RFC 3339 time", "format")
    del message[name]
    return instant
