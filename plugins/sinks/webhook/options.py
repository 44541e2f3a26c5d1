"""The options of a webhook, and their checks before anything is sent."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import msgspec

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options, Secret, Url

__all__ = ["WebhookOptions", "checked_headers", "signing_key"]

_LEAST_SECRET = 16

# Headers that the sink or the connection sets.
_OWN_HEADERS = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade", "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~]+")


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


def signing_key(secret: Secret | None, path: str) -> bytes | None:
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


def checked_headers(given: dict[str, Secret], path: str) -> dict[str, str]:
    seen: set[str] = set()
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{path}: {name!r} cannot be the name of a header")
        if name.lower() in _OWN_HEADERS:
            raise ConfigError(f"{path}.{name}: the sink sets this header")
        if name.lower() in seen:
            raise ConfigError(f"{path}.{name}: is given twice")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"{path}.{name}: expected one line of ASCII characters")
        seen.add(name.lower())
    return {name: str(value).strip() for name, value in given.items()}
