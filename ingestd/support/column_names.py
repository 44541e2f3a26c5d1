"""Names of views and columns: snake_case, and different for different things."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from hashlib import sha256

__all__ = ["distinct", "snake_case"]

_LONGEST = 50
"""Characters, without the digest. PostgreSQL cuts names beyond 63 bytes."""


def snake_case(text: str) -> str:
    """The name in lower-case ASCII letters, digits and `_`. One that loses letters, or is long, ends with a digest."""
    plain = unicodedata.normalize("NFKD", text)
    kept = "".join(each for each in plain if not unicodedata.combining(each))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kept)
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    if name[:1].isdigit():
        name = f"n{name}"
    is_complete = all(each.isascii() for each in kept if each.isalnum())
    if not is_complete or not name or len(name) > _LONGEST:
        return _with_digest(name[:_LONGEST].strip("_"), text)
    return name


def distinct(texts: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """The name of each text. Of several with the same name the first keeps it; the others end with a digest."""
    names: dict[str, str] = {}
    used = {*taken}
    for text in texts:
        name = snake_case(text)
        if name in used:
            name = _with_digest(name, text)
        used.add(name)
        names[text] = name
    return names


def _with_digest(name: str, text: str) -> str:
    digest = sha256(text.encode()).hexdigest()[:6]
    return f"{name}_{digest}" if name else f"n{digest}"
