"""The operators' page: one HTML document with all that it needs in it, and the policy that keeps it to that.

The folder `uplot` is another's work (its LICENSE.txt), unchanged; uplot.json tells which, and a test holds it to it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

__all__ = ["Page", "page"]


class Page(NamedTuple):
    html: bytes
    packed: bytes
    """The same, by gzip."""
    policy: str
    """Of its Content-Security-Policy header: nothing runs, and nothing is fetched, but what is named there."""


@cache
def page() -> Page:
    """Put together once; it takes some milliseconds."""
    styles = _read("uplot/uPlot.min.css"), _read("page.css")
    scripts = _read("uplot/uPlot.iife.min.js"), _read("charts.js"), _read("page.js")
    html = _read("page.html")
    html = html.replace("<!-- styles -->", "".join(f"<style>{style}</style>" for style in styles))
    html = html.replace("<!-- scripts -->", "".join(f"<script>{script}</script>" for script in scripts))
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:;"
        f" style-src {_hashes(styles)}; script-src {_hashes(scripts)};"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    whole = html.encode()
    return Page(whole, gzip.compress(whole, mtime=0), policy)


def _read(name: str) -> str:
    return (resources.files(__name__) / name).read_text()


def _hashes(texts: tuple[str, ...]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
