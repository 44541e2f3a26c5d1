"""The operators' page: one HTML document with its styles and scripts, and a policy that forbids everything else.

The folder `uplot` is a third-party library (LICENSE.txt), unchanged. uplot.json has its version and digests, and a test
compares them with the files.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

__all__ = ["Page", "page"]

VIEWS = ("sales.html", "overview.html", "events.html", "journey.html", "dead_letters.html")
SCRIPTS = (
    "frame.js", "uplot/uPlot.iife.min.js", "charts.js", "page.js", "orders.js", "sales.js", "events.js", "journey.js",
    "dead_letters.js",
)  # fmt: skip
"""`frame.js` has what the others use. `page.js` is the overview."""


class Page(NamedTuple):
    html: bytes
    packed: bytes
    """`html`, compressed with gzip."""
    policy: str
    """The Content-Security-Policy header: the browser runs and fetches only what it names."""


@cache
def page() -> Page:
    """The page, assembled once: this takes some milliseconds."""
    styles = _read("uplot/uPlot.min.css"), _read("page.css")
    scripts = tuple(map(_read, SCRIPTS))
    html = _read("page.html")
    html = html.replace("<!-- views -->\n", "".join(map(_read, VIEWS)))
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
