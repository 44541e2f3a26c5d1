"""Tokens by which a client may use a storage of Azure for a time (SAS)."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

__all__ = ["as_query", "signatures"]


def as_query(token: str) -> str:
    """The token as pyarrow needs it, which puts it behind a URL. Azure shows it with and without the question mark."""
    return f"?{token.removeprefix('?')}"


def signatures(token: str) -> list[str]:
    """Its secret part, as it is given and as URLs may have it. Messages have URLs with the parts in another order."""
    given = re.findall(r"(?:^|[?&])sig=([^&]+)", token)
    return [form for each in given for form in (each, unquote(each), quote(unquote(each), safe=""))]
