"""The signatures of platforms: an HMAC-SHA256 of the body, keyed with a secret that the platform shows once."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Sequence
from typing import Literal

__all__ = ["Encoding", "has_signature", "signature_of"]

Encoding = Literal["base64", "hex"]

_BYTES = 32


def signature_of(body: bytes, secret: str) -> bytes:
    return hmac.digest(secret.encode(), body, "sha256")


def has_signature(body: bytes, given: Iterable[str], secrets: Sequence[str], encoding: Encoding) -> bool:
    """Whether one of the given texts is the signature of exactly these bytes, made with one of the secrets."""
    decoded = [each for each in (_decode(text, encoding) for text in given) if each is not None]
    if not decoded:
        return False
    made = [signature_of(body, secret) for secret in secrets]
    return any(hmac.compare_digest(one, another) for one in decoded for another in made)


def _decode(text: str, encoding: Encoding) -> bytes | None:
    """The bytes of a signature; None for a text that is none."""
    try:
        decoded = base64.b64decode(text, validate=True) if encoding == "base64" else bytes.fromhex(text)
    except (binascii.Error, ValueError):
        return None
    return decoded if len(decoded) == _BYTES else None
