"""Names of views and columns: snake_case, and different for different things."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Hashable, Mapping
from hashlib import sha256
from typing import TypeVar

__all__ = ["distinct", "snake_case"]

_K = TypeVar("_K", bound=Hashable)
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


def distinct(texts: Mapping[_K, str], taken: Collection[str] = ()) -> dict[_K, str]:
    """A name for each text. Of several with the same name the first keeps it; the others end with a digest."""
    names: dict[_K, str] = {}
    used = {*taken}
    for key, text in texts.items():
        name, told = snake_case(text), text
        while name in used:
            name = _with_digest(snake_case(text)[:_LONGEST], told)
            told += "/"  # another text may have the digest, too
        used.add(name)
        names[key] = name
    return names


def _with_digest(name: str, text: str) -> str:
    digest = sha256(text.encode()).hexdigest()[:6]
    return f"{name}_{digest}" if name else f"n{digest}"
