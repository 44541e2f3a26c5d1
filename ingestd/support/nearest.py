"""The known name that a misspelt name probably means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to this one, ignoring case, or None if no name is similar."""
    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None
