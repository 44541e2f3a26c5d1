"""Names that operators give: of tenants, apps and permissions."""

from __future__ import annotations

import re

__all__ = ["NAME", "check_name"]

NAME = r"^[A-Za-z0-9_.-]{1,64}\Z"
"""A regular expression for the name of a tenant, an app or a permission."""


def check_name(name: str) -> str:
    """Return a valid name of a tenant, an app or a permission. Raises `ValueError`."""
    if not re.match(NAME, name):
        raise ValueError(f"expected a name of 1 to 64 letters, digits, - _ and ., got {name!r}")
    return name
