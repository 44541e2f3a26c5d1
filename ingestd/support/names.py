"""Names: those that operators give, and the known one that a misspelt name probably means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["NAME", "check_name", "hint", "nearest"]

NAME = r"^[A-Za-z0-9_.-]{1,64}\Z"
"""A regular expression for the name of a tenant, an app or a permission."""


def check_name(name: str) -> str:
    """Return a valid name of a tenant, an app or a permission. Raises `ValueError`."""
    if not re.match(NAME, name):
        raise ValueError(f"expected a name of 1 to 64 letters, digits, - _ and ., got {name!r}")
    return name


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to this one, ignoring case, or None if no name is similar."""
    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None


def hint(name: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """The part of a message about an unknown name: `did you mean NEAREST?`, or all names if no name is similar.

    `otherwise` replaces the list of all names.
    """
    known = [*known]
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"known: {', '.join(known)}" if otherwise is None else otherwise
