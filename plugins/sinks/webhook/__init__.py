"""The `webhook` sink: posts each batch of records to a URL, as a JSON array, signed.

A 2xx answer means that the receiver has stored the records durably. 400, 413 and 422 refuse the batch. The sink halves
a refused batch, in order, until each record is taken or refused alone. It rejects a record that is refused alone.

408, 425, 429 and 5xx are failures of the receiver. After any other answer, or without one, a record may be at fault. In
both cases the batch comes again, without the parts that were answered already.

`webhook-id` is made from the ids of the records, so the same records always have the same id. The signature follows
Standard Webhooks. It covers the array before compression.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hmac
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import responses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Options, Secret, Url, has_credentials, password_in_clear
from ingestd.api.sink import Sink
from ingestd.support.ids import named_uuid

if TYPE_CHECKING:
    from .client import Target

__all__ = ["WebhookOptions", "WebhookSink", "register_sinks"]

_LEAST_SECRET = 16
_MOST_AFTER = 3600.0
_OF_RECEIVER = (408, 425, 429)  # and 5xx: failures of the receiver, not of a record
_SECRET_HEADER = re.compile(r"auth|token|key|secret|password|cookie", re.IGNORECASE)


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("webhook", WebhookSink)


class WebhookOptions(Options):
    url: Url
    """The URL to post to. A user and password in it are sent as `Authorization: Basic`."""
    secret: Secret | None = None
    """The key of the signature: `whsec_` and base64, or any text of at least 16 characters."""
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    """Headers of each request, beside the headers that the sink sets."""
    gzip: bool = False
    """Whether requests are compressed."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""


class _Item(NamedTuple):
    """One record of a batch: its number in the batch, its id and its body."""

    number: int
    id: str
    body: bytes


class WebhookSink(Sink):
    Options = WebhookOptions

    def __init__(self, name: str, options: WebhookOptions) -> None:
        super().__init__(name, options)
        from .client import Target  # here, because most commands do not need Tornado's client

        path = f"sinks.{name}"
        self._target: Target = Target(options, path)
        self._key = _signing_key(options.secret, f"{path}.secret")
        self._outcomes: dict[str, str | None] = {}
        """The outcomes of the current batch and its parts, by webhook-id: the reason of a refusal, or None if taken."""

    async def write(self, batch: Sequence[Record]) -> None:
        items = await asyncio.to_thread(_items, batch)
        if _webhook_id(items) not in self._outcomes:  # else it comes again, and continues where it stopped
            self._outcomes.clear()
        reasons = await self._deliver(items)
        self._outcomes.clear()
        if reasons:
            raise SinkReject(reasons, written=len(items))  # each of the others is taken

    def risks(self) -> Sequence[str]:
        options, path = self.options, f"sinks.{self.name}"
        if urlsplit(options.url).scheme == "https":
            return ()
        secret = next((name for name in options.headers if _SECRET_HEADER.search(name)), None)
        if secret is not None:
            return password_in_clear(f"{path}.headers.{secret}", options.url, "use https")
        return password_in_clear(f"{path}.url", options.url, "use https") if has_credentials(options.url) else ()

    async def check(self) -> None:
        await self._target.connect()

    async def _deliver(self, items: Sequence[_Item]) -> dict[int, str]:
        """Post records until each is taken or refused. Returns the reason for each refused record, by its index."""
        webhook_id = _webhook_id(items)
        if webhook_id not in self._outcomes:
            self._outcomes[webhook_id] = await self._post(webhook_id, [item.body for item in items])
        refusal = self._outcomes[webhook_id]
        if refusal is None:
            return {}
        if len(items) == 1:
            return {items[0].number: refusal}
        middle = len(items) // 2
        return {**await self._deliver(items[:middle]), **await self._deliver(items[middle:])}

    async def _post(self, webhook_id: str, bodies: list[bytes]) -> str | None:
        """Post records together. Returns None if they are taken, or the reason of the refusal."""
        # In a thread, because compressing and signing megabytes would hold up the event loop.
        headers, body = await asyncio.to_thread(self._content, webhook_id, bodies)
        answer = await self._target.post(headers, body)
        from .client import REFUSALS

        told = f"{self._target.host} answers {answer.status} {responses.get(answer.status, '')}".rstrip()
        if 200 <= answer.status < 300:
            return None
        if answer.status in REFUSALS:
            text = self._target.presentable(answer.text)
            return f"{told}: {text}" if text else told
        if 300 <= answer.status < 400:
            told += "; redirects are not followed, so the url must be their target"
        kind = SinkRetry if answer.status in _OF_RECEIVER or answer.status >= 500 else SinkFailure
        raise kind(told, after=_retry_after(answer.headers.get("Retry-After", "")))

    def _content(self, webhook_id: str, bodies: list[bytes]) -> tuple[dict[str, str], bytes]:
        body = b"[" + b",".join(bodies) + b"]"
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": timestamp,
        }
        if self._key is not None:
            digest = hmac.digest(self._key, f"{webhook_id}.{timestamp}.".encode() + body, "sha256")
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        if self.options.gzip:
            body = gzip.compress(body, 6)
            headers["Content-Encoding"] = "gzip"
        return headers, body


def _signing_key(secret: Secret | None, path: str) -> bytes | None:
    if secret is None:
        return None
    if not secret.startswith("whsec_"):
        if len(secret) < _LEAST_SECRET:
            raise ConfigError(f"{path}: expected at least {_LEAST_SECRET} characters")
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ConfigError(f"{path}: the text after whsec_ is not base64") from None
    if len(key) < _LEAST_SECRET:
        raise ConfigError(f"{path}: expected at least {_LEAST_SECRET} bytes after whsec_")
    return key


def _items(batch: Iterable[Record]) -> list[_Item]:
    return [_Item(number, record.decode()["id"], record.body) for number, record in enumerate(batch)]


def _webhook_id(items: Iterable[_Item]) -> str:
    return named_uuid(*(item.id for item in items))


def _retry_after(text: str) -> float | None:
    """The least seconds to wait by `Retry-After`, which is a number of seconds or an HTTP date."""
    if re.fullmatch(r"[0-9]+", text):
        return min(float(text), _MOST_AFTER)
    try:
        at = parsedate_to_datetime(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(seconds, _MOST_AFTER) if seconds > 0 else None
