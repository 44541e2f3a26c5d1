"""Server keys: a key's id as the bearer credential and an HMAC of the body in `x-signature`."""

from __future__ import annotations

import hmac
import re

from ingestd import hookimpl
from ingestd.errors import Unauthorized
from ingestd.events import Endpoint, Principal, Request
from ingestd.hookspecs import Daemon
from ingestd.store import Store

from .ecmascript import canonical
from .key_registry import KeyRegistry

__all__ = ["HmacPlugin", "is_signed"]

# Serialising a body again is slow; larger ones have to be signed as they are sent.
_MAX_CANONICAL_BYTES = 256_000

_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


class HmacPlugin:
    def __init__(self) -> None:
        self._registry = KeyRegistry()
        self._tells_missing = False

    @hookimpl
    async def startup(self, daemon: Daemon) -> None:
        self._tells_missing = daemon.plugin("keys") is None  # which tells it otherwise
        await self._registry.start(daemon, name="hmac_auth: follow changes of keys")

    async def refresh(self, store: Store) -> None:
        """Know at once which keys there are. Raises `Unavailable`."""
        await self._registry.refresh(store)

    @hookimpl
    async def store_lost(self, store: Store) -> str | None:
        """Know the keys that the plugin keys has written again."""
        await self._registry.refresh(store)
        return self._registry.missing() if self._tells_missing else None

    @hookimpl
    def authenticate(self, request: Request) -> Principal | None:
        """The server key that signed the request; None leaves any other credential to other plugins."""
        credential = request.bearer() if request.endpoint is Endpoint.CUSTOMER_EVENTS else None
        key = self._registry.server(credential) if credential is not None else None
        if key is None:
            return None
        signature = request.headers.get("x-signature")
        if signature is None:
            raise Unauthorized(
                "the header x-signature is missing: the HMAC-SHA256 of the body, in hex, keyed with the key's secret",
                code="invalid_signature",
            )
        secrets = [secret.encode() for secret in key.secrets(request.received_at)]
        if not is_signed(request.body, signature.strip(), secrets):
            raise Unauthorized(
                "x-signature does not match: it must be the HMAC-SHA256, in hex, of exactly the bytes of the body,"
                " keyed with the secret that belongs to this key",
                code="invalid_signature",
            )
        return key.principal()


def is_signed(body: bytes, signature: str, secrets: list[bytes]) -> bool:
    """Whether the signature, in hex, is that of one of the secrets over the body.

    That is the body as it is, or else, up to 256 kB, as ECMAScript would write it: some clients sign
    the one and send the other.
    """
    if not _SHA256_HEX.fullmatch(signature):
        return False
    given = bytes.fromhex(signature)
    if _matches(body, given, secrets):
        return True
    rewritten = canonical(body) if len(body) <= _MAX_CANONICAL_BYTES else None
    return rewritten is not None and rewritten != body and _matches(rewritten, given, secrets)


def _matches(message: bytes, given: bytes, secrets: list[bytes]) -> bool:
    return any(hmac.compare_digest(hmac.digest(secret, message, "sha256"), given) for secret in secrets)
