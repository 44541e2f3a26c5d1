"""Hides secrets in messages, which may quote them, and names that tell who somebody is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

__all__ = ["mask", "mask_name"]

_SURE = 12
"""The characters from which a secret with a digit is no word, so that it is hidden even within other text."""
_LONG = 20
"""The characters from which it is no word without a digit either."""
_MOST_DIGITS = 4
"""The digits that the name of a member may have."""


def mask(text: str, secrets: Mapping[str, str]) -> str:
    """The text with another text for each secret, also where it is encoded for a URL or decoded from one.

    A secret that may be a word, such as `shop`, is hidden as a whole word only: `shop-lake` and `shop.db` are names.
    """
    forms = {form: shown for each, shown in secrets.items() for form in (quote(each, safe=""), unquote(each))} | {
        **secrets
    }
    for secret in sorted(filter(str.strip, forms), key=len, reverse=True):  # a URL before its password
        text = re.sub(_pattern(secret), lambda _, shown=forms[secret]: shown, text)  # type: ignore[misc]
    return text


def _pattern(secret: str) -> str:
    pattern = re.escape(secret)
    if len(secret) >= _LONG or (len(secret) >= _SURE and re.search("[0-9:]", secret)):
        return pattern
    before = r"(?<!\w)(?<!\w[-./])" if re.match(r"\w", secret) else ""
    after = r"(?!\w)(?![-./]\w)" if re.search(r"\w\Z", secret) else ""
    return f"{before}{pattern}{after}"


def mask_name(name: str) -> str:
    """The name of a member, or `*` for an address, number or id: objects that are maps have such names."""
    is_word = name[:1].isalpha() or name[:1] in {"_", "$", "*"}
    is_value = "@" in unquote(name) or sum(map(str.isnumeric, name)) > _MOST_DIGITS
    return name if is_word and not is_value else "*"
