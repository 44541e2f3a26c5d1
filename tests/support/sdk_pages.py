"""The pages of a shop that use SDKs for browsers, served from an origin other than the daemon's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .browser import Tab
from .sdks import MODULES, PROGRAMS, Call, lines_of

__all__ = ["BROWSER_SDKS", "SdkPages", "go_on", "make_calls", "sdk_pages"]

BROWSER_SDKS = ("@segment/analytics-next", "@rudderstack/analytics-js")
"""Their headings in docs/sdks.md."""

# The package of Segment is made for a bundler. A page without one gets the same lines from its other build.
_NEXT = """import '/node_modules/@segment/analytics-next/dist/umd/index.js'
export const { AnalyticsBrowser } = window.AnalyticsNext
"""
_IMPORTS = {
    "@segment/analytics-next": "/next.mjs",
    "@rudderstack/analytics-js/bundled": (
        "/node_modules/@rudderstack/analytics-js/dist/npm/modern/bundled/esm/index.mjs"
    ),
}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><link rel="icon" href="data:,">
<script type="importmap">{imports}</script>
{scripts}
</html>
"""
_MODULE = """<script type="module">
import {{ offer }} from '/programs/browser.mjs'
{lines}
offer(analytics)
</script>
"""
# The snippet in short: `load` keeps its arguments, and adds the script that replaces `window.analytics`.
_SNIPPET = """<script>
const analytics = window.analytics = []
analytics.load = (key, options) => {{
  Object.assign(analytics, {{ _writeKey: key, _loadOptions: options }})
  const script = document.createElement('script')
  script.src = '/node_modules/@segment/analytics-next/dist/umd/standalone.js'
  document.head.append(script)
}}
{lines}
</script>
<script type="module">
import {{ offer }} from '/programs/browser.mjs'
while (window.analytics === analytics) await new Promise((done) => setTimeout(done, 10))
offer(window.analytics)
</script>
"""


def make_calls(tab: Tab, calls: Sequence[Call]) -> None:
    """Make calls with the SDK of a page, once the page has it."""
    tab.wait_for("typeof send === 'function'")
    tab.evaluate(f"send({json.dumps(calls)})")


def go_on(tab: Tab, url: str) -> None:
    """The visitor leaves the page for this one."""
    tab.evaluate("send = undefined")  # the calls after this wait for the new page
    tab.open(url)


class SdkPages:
    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        self._folder = folder
        self._count = 0

    def publish(self, package: str, host: str, key: str, block: int = 0) -> str:
        """A page with a block of the package's lines of docs/sdks.md; returns its URL.

        Each page has an origin of its own, so that no page finds the visitor of another.
        """
        self._count += 1
        name = f"page-{self._count}"
        template = _SNIPPET if package == "Segment's snippet" else _MODULE
        scripts = template.format(lines=lines_of(package, host, key, block))
        page = _PAGE.format(title=package, imports=json.dumps({"imports": _IMPORTS}), scripts=scripts)
        (self._folder / f"{name}.html").write_text(page)
        return f"http://{name}.localhost:{self._port}/{name}.html"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextmanager
def sdk_pages(folder: Path) -> Iterator[SdkPages]:
    """A server of the files of this folder, which gets the SDKs too."""
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "programs").symlink_to(PROGRAMS)
    (folder / "next.mjs").write_text(_NEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield SdkPages(folder, server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
