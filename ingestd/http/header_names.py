"""The limit on the length of header names. Callers choose the names, and Tornado remembers a thousand of them."""

from __future__ import annotations

import re

from ingestd.api.errors import HeadersTooLarge

__all__ = ["LONGEST_NAME", "has_long_name", "name_too_long"]

LONGEST_NAME = 256  # characters; usual names have less than forty

_LONG_NAME = re.compile(rb"\n[!#$%%&'*+\-.^_`|~0-9A-Za-z]{%d}" % (LONGEST_NAME + 1))


def has_long_name(head: bytes) -> bool:
    """Whether a line behind the request line begins with a name that is too long."""
    return _LONG_NAME.search(head) is not None


def name_too_long() -> HeadersTooLarge:
    return HeadersTooLarge(f"The name of a header is longer than {LONGEST_NAME} characters.")
