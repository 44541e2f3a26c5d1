"""The pages of a shop with the browser client, served from an origin other than the daemon's."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .tab import AnyBrowser, AnyTab

__all__ = ["CLIENT_PATH", "LOADED", "ShopPages", "Site", "shop_pages"]

CLIENT_PATH = "/api/v1/analytics/client.js"

_DOCS = Path(__file__).parents[2] / "docs" / "browser.md"
_CLIENT = Path(__file__).parents[2] / "clients" / "browser"
_HEAD = '<!doctype html><html lang="en"><meta charset="utf-8"><title>A shop</title><link rel="icon" href="data:,">'
LOADED = "document.readyState === 'complete' && window.ingestd && !Array.isArray(ingestd.calls)"


@dataclass
class Site:
    """A shop whose pages have the lines of docs/browser.md. Any path is a page."""

    origin: str
    daemon: str
    """The URL of the daemon."""
    key: str
    options: dict[str, Any]
    """Further options of `init`."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each page."""
    inline: bool = True
    """Whether the page has its first script inline. Otherwise it is a file."""
    loads: bool = True
    """Whether the page has the tag that loads the client."""
    before_send: str = ""
    """The function of this option, as JavaScript."""
    pages: dict[str, str] = field(default_factory=dict)
    """The HTML of pages without the client, by their paths."""

    @property
    def name(self) -> str:
        """A text in the URL of each page, by which its records can be found."""
        return self.origin.removeprefix("http://")

    def scripts(self) -> tuple[str, str]:
        """The code of the first script, and the tag of the second."""
        block = re.search(r"```html\n<script>\n(.*?)</script>\n(.*?)\n```", _DOCS.read_text(), re.DOTALL)
        assert block is not None
        given = json.dumps({"host": self.daemon, "key": self.key, "interval": 50, **self.options})
        if self.before_send:
            given = f"{given[:-1]}, before_send: {self.before_send}}}"
        code = re.sub(r"init\(\{.*\}\)", lambda _: f"init({given})", block[1])
        return code, block[2].replace("https://events.example.com", self.daemon)

    def page(self) -> str:
        code, tag = self.scripts()
        first = f"<script>{code}</script>" if self.inline else '<script src="/setup.js"></script>'
        return f"{_HEAD}{first}{tag if self.loads else ''}</html>"

    def visit(self, tab: AnyTab, path: str = "/") -> None:
        """Open a page, and wait for the client."""
        url = self.origin + path
        tab.open(url)
        tab.wait_for(f"location.href === new URL({json.dumps(url)}).href && {LOADED}")

    def open(self, browser: AnyBrowser, path: str = "/") -> AnyTab:
        tab = browser.tab()
        self.visit(tab, path)
        return tab


class ShopPages:
    def __init__(self, port: int) -> None:
        self.sites: dict[str, Site] = {}
        self._port = port

    def site(self, name: str, daemon: str, key: str, **options: Any) -> Site:
        """A site with an origin of its own: nothing that another site has kept is there."""
        site = Site(f"http://{name}.localhost:{self._port}", daemon, key, options)
        self.sites[site.name] = site
        return site


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, pages: list[ShopPages], *arguments: Any) -> None:
        self._pages = pages
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""

    def do_GET(self) -> None:
        site = self._pages[0].sites[self.headers["Host"]]
        path = self.path.partition("?")[0]
        is_script = path.endswith(".js")
        if path == "/setup.js":
            text = site.scripts()[0]
        elif is_script:
            text = (_CLIENT / path[1:]).read_text()
        else:
            text = site.pages[path] if path in site.pages else site.page()
        body = text.encode()
        self.send_response_only(200)
        for name, value in site.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/javascript" if is_script else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def shop_pages() -> Iterator[ShopPages]:
    holder: list[ShopPages] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, holder))
    server.daemon_threads = True  # a browser may keep its connection
    holder.append(ShopPages(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield holder[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
