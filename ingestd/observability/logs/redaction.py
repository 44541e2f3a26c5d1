"""The redaction of secrets in every text of the log.

Credentials of the request in progress are known, so they are always found. Errors of plugins and libraries quote other
input. So any text that looks like a key, a secret or a signature is redacted too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ingestd.api.events import Request

__all__ = ["redact"]

_LEAST = 4
"""The minimum length of a secret, in characters. Shorter texts occur everywhere in a line, and no key is that short."""

_MOST = 32
"""The maximum number of secrets of one request: an attacker could send thousands to make its lines expensive."""

_SECRET_HEADER = re.compile("auth|cookie|key|secret|signature|token", re.IGNORECASE)

_PATTERNS = (
    # A header in any notation: as sent, in a dict, in a list of pairs.
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
    # Public keys and secrets of `ingestd keys create`: long and in mixed case, as names seldom are.
    (re.compile(r"(?<![\w-])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{40,}", re.ASCII), "***"),
)


def redact(text: str, request: Request | None) -> str:
    """The text with `***` for every secret of the request, and for any text that looks like a secret."""
    for secret in _shown_by(request) if request is not None else ():
        text = text.replace(secret, "***")
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _shown_by(request: Request) -> Iterable[str]:
    """The credentials of the request in every form that a text may quote, the longest first."""
    headers = request.headers
    others = (value for name, value in headers.items() if _SECRET_HEADER.search(name))
    values = [headers.get("Authorization", ""), headers.get("x-signature", ""), *others]
    # Each value also without its scheme. A header that was sent twice has several values, separated by commas.
    wholes = [each.strip() for value in values for each in (value, *value.split(","))]
    secrets = dict.fromkeys(each for whole in wholes for each in (whole, whole.partition(" ")[2].strip()))
    found = [secret for secret in secrets if len(secret) >= _LEAST][:_MOST]
    quoted = {form for secret in found for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])}
    return sorted({case for form in quoted for case in (form, form.lower(), form.upper())}, key=len, reverse=True)
