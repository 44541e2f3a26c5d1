"""The paths of the intake, and where a request has its write key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from ingestd.api.errors import ConfigError, Refused
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.intake import Intake, Route
from ingestd.support.unusable_ids import UnusableIds

from .loaders import settings_of_project, source_config, take_metrics
from .names import EventNames
from .stored_messages import StoredMessages
from .translation import SegmentTranslation

__all__ = ["SegmentIntake"]

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
