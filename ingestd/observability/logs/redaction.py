"""Secrets are blanked out of text that goes to the log, whoever wrote it.

What a request itself has shown is known and always found. Beyond that, all that looks like a key, a secret or a
signature goes: the errors of plugins and libraries quote what they were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ingestd.api.events import Request

__all__ = ["redact"]

_LEAST = 4
"""Characters. To blank out less would blank out half of the line, and no key is that short."""

_MOST = 32
"""How many a request is believed to have; it may send thousands, to make its lines expensive."""

_SECRET_HEADER = re.compile("auth|cookie|key|secret|signature|token", re.IGNORECASE)

_PATTERNS = (
    # A header in any notation: as it was sent, of a dict, of a list of pairs.
    (
        re.compile(
            r"""\b((?:authorization|x-signature|cookie)['"]?\s*[:=,]\s*b?['"]?)(?:\w+\s+)?[^\s'",)\]}]+""",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"""\b(bearer\s+)[^\s'",)\]}]+""", re.IGNORECASE), r"\1***"),
    # The password of a URL.
    (re.compile(r"(://[^\s:/@]*:)[^\s/@]*@"), r"\1***@"),
    # Signatures.
    (re.compile(r"[0-9a-fA-F]{64,}"), "***"),
    # Public keys and secrets as `ingestd keys create` makes them: long, and of both cases, as a name seldom is.
    (re.compile(r"(?<![\w-])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{40,}", re.ASCII), "***"),
)


def redact(text: str, request: Request | None) -> str:
    """The text with `***` for every secret of the request it is written for, and for all that looks like one."""
    for secret in _shown_by(request) if request is not None else ():
        text = text.replace(secret, "***")
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _shown_by(request: Request) -> Iterable[str]:
    """What the request has shown to prove who it is from, in all forms that text may quote; the longest first."""
    headers = request.headers
    others = (value for name, value in headers.items() if _SECRET_HEADER.search(name))
    values = [headers.get("Authorization", ""), headers.get("x-signature", ""), *others]
    # Also without its scheme, and each by itself of a header that was sent twice.
    wholes = [each.strip() for value in values for each in (value, *value.split(","))]
    secrets = dict.fromkeys(each for whole in wholes for each in (whole, whole.partition(" ")[2].strip()))
    found = [secret for secret in secrets if len(secret) >= _LEAST][:_MOST]
    quoted = {form for secret in found for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])}
    return sorted({case for form in quoted for case in (form, form.lower(), form.upper())}, key=len, reverse=True)
