"""The browser client as an answer to GET: compressed, and cached for as long as its URL allows."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["ClientFile", "FileAnswer", "browser_client"]

_FOREVER = "public, max-age=31536000, immutable"
_AN_HOUR = "public, max-age=3600"
_WITHOUT_GZIP = re.compile(r"gzip\s*+;\s*+q=0(\.0*+)?\s*+(,|$)", re.IGNORECASE)


class FileAnswer(NamedTuple):
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


class ClientFile:
    """A JavaScript file. Its `version` is a hash of its content."""

    def __init__(self, content: bytes) -> None:
        self.version = hashlib.sha256(content).hexdigest()[:16]
        self._content = content
        self._packed = gzip.compress(content, mtime=0)

    def answer(self, headers: Mapping[str, str], query: str) -> FileAnswer:
        """The answer to a request with these headers. A query with `v=` and the version is cached for ever."""
        accepted = headers.get("Accept-Encoding", "")
        packs = "gzip" in accepted.lower() and not _WITHOUT_GZIP.search(accepted)
        # One URL has two bodies, and an ETag names one of them.
        tag = f'"{self.version}{"-gzip" if packs else ""}"'
        common = [
            ("Cache-Control", _FOREVER if f"&v={self.version}&" in f"&{query}&" else _AN_HOUR),
            ("ETag", tag),
            ("Vary", "Accept-Encoding"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "cross-origin"),
        ]
        if _has_tag(headers.get("If-None-Match", ""), tag):
            return FileAnswer(304, common, b"")
        body = self._packed if packs else self._content
        common += [("Content-Type", "text/javascript; charset=utf-8"), ("Content-Length", str(len(body)))]
        if packs:
            common.append(("Content-Encoding", "gzip"))
        return FileAnswer(200, common, body)


@cache
def browser_client() -> ClientFile:
    """The browser client of this version of ingestd."""
    return ClientFile(files("ingestd.clients.browser").joinpath("ingestd.js").read_bytes())


def _has_tag(condition: str, tag: str) -> bool:
    """Whether an If-None-Match names the tag, with its quotation marks. A proxy may have made it weak."""
    return tag in condition or condition.strip() == "*"
