"""The paths of webhooks, the proof that a platform has sent a request, and the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ingestd.api.errors import Refused, Unauthorized
from ingestd.api.events import Principal, Request, Session
from ingestd.api.intake import Intake, Message, Route, Translation

from .webhook import Webhook

__all__ = ["ListsIntake", "WebhookIntake"]

log = logging.getLogger("ingestd.webhooks")

_MAX_ON_LOOP = 256 * 1024  # bytes; to decode and hash them takes a millisecond
_OK = b'{"success":true}'


class WebhookIntake(Intake):
    """The webhooks of one platform. The name of a route is that of its webhook."""

    def __init__(self, webhooks: Sequence[Webhook]) -> None:
        self.endpoint = webhooks[0].endpoint  # type: ignore[misc]  # an intake of each platform has another one
        self.schemas = webhooks[0].schemas
        self.routes = [Route(f"/webhooks/{webhook.name}", webhook.name) for webhook in webhooks]
        self._webhooks = {webhook.name: webhook for webhook in webhooks}
        self._logged_at = float("-inf")
        self._untold = 0

    def check(self, keys: frozenset[str]) -> None:
        for webhook in self._webhooks.values():
            webhook.check_keys(keys)

    def credential(self, request: Request, body: Mapping[str, Any] | None) -> str | None:
        """None: the signature alone counts."""
        return None

    def tenant_of(self, route: Route) -> str:
        return self._webhooks[route.name].tenant

    def webhook_of(self, request: Request) -> Webhook:
        assert request.route is not None
        return self._webhooks[request.route.name]

    async def authenticate(self, request: Request) -> Principal:
        """The principal of the webhook whose platform has signed the request. Raises `Unauthorized`."""
        webhook = self.webhook_of(request)
        body = request.small_body(_MAX_ON_LOOP)
        if body is None:
            body = await request.load_body()
            signed = await asyncio.to_thread(webhook.is_signed, request, body)
        else:
            signed = webhook.is_signed(request, body)
        if not signed:
            raise Unauthorized(
                f"The signature is missing or wrong: it is checked with `secret` of [plugins.webhooks.{webhook.name}].",
                code="invalid_signature",
            )
        return webhook.principal

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        return _Translation(self, self.webhook_of(request), request)

    def tell(self, webhook: Webhook, topic: str, refused: Refused, request_id: str) -> None:
        """Log a refused message, at most once a second. The platform gets 200, so nobody else would know."""
        self._untold += 1
        now = time.monotonic()
        if now - self._logged_at < 1:
            return
        faults = "; ".join(f"{each.pointer or 'the body'}: {each.message}" for each in refused.errors[:3])
        more = f" ({self._untold - 1} more were refused since the last such line)" if self._untold > 1 else ""
        log.warning(
            "the webhook %s has refused a message%s: %s%s",
            webhook.name, f" of the topic {topic}" if topic else "", faults or refused.detail, more,
            extra={"ingestd_fields": {"webhook": webhook.name, "topic": topic or None, "request_id": request_id}},
        )  # fmt: skip
        self._logged_at, self._untold = now, 0


class ListsIntake(WebhookIntake):
    """The webhooks of a platform whose lists can be imported from files."""

    def begin_import(self, tenant: str, keys: frozenset[str]) -> Translation | None:
        return next((_Stored(each) for each in self._webhooks.values() if each.tenant == tenant), None)


class _Translation(Translation):
    def __init__(self, intake: WebhookIntake, webhook: Webhook, request: Request) -> None:
        self._intake = intake
        self._webhook = webhook
        self._headers = request.headers
        self._request_id = request.id
        self._topic = ""

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Sequence[Message]:
        self._topic = self._webhook.topic(self._headers, message)
        return self._webhook.read(self._topic, self._headers, message, self.check)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        """200 for a message that will never be stored, too: a platform stops sending after some other answers."""
        for result in results:
            if isinstance(result, Refused):
                if result.status >= 500 or result.status == 429:
                    return result
                self._intake.tell(self._webhook, self._topic, result, self._request_id)
        return _OK


class _Stored(Translation):
    """Objects of a platform's lists, in files."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self.sender = webhook.principal

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Sequence[Message]:
        return self._webhook.read_stored(message, self.check)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        raise NotImplementedError("a file gets no answer")
