"""The script behind `make screenshots`: it serves the demo in a new folder, sends a shop's events to it, and saves
pictures of the operators' page to docs/images.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.support.browser import Browser

from . import demo

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PORT, OPS_PORT = 18080, 19464
WIDTH, HEIGHT = 1100, 760
RATE = 40  # events a second
FILLED = 45  # seconds: the charts need some points


class Picture(NamedTuple):
    name: str
    fragment: str
    ready: str
    """A JavaScript expression that is true when the view has its content."""
    dark: bool = False


PICTURES = [
    Picture("overview", "overview", "document.querySelectorAll('canvas').length === 3"),
    Picture("overview-dark", "overview", "document.querySelectorAll('canvas').length === 3", dark=True),
    Picture("events", "events", "live.events.slice(0, 8).some((each) => each.reason)"),
    Picture("journey", "journey?order=o-1001", "!document.getElementById('journey-result').hidden"),
    Picture("dead-letters", "dead-letters", "document.querySelector('#dead-letters-list li') !== null"),
]

SINK = """
[sinks.reviews]
type = "webhook"
url = "http://127.0.0.1:{port}/"
filter = {{ keys = ["Product Reviewed", "Product Shared", "Products Searched"] }}
"""


class Refusing(BaseHTTPRequestHandler):
    """A service that takes no record, so that there are dead letters."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(422)
        self.end_headers()
        self.wfile.write(b"no product has this number")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ingestd-pictures-") as name:
        folder = Path(name, "demo")
        demo.make(folder, PORT, OPS_PORT)
        made = demo.read_demo(folder)
        refusing = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        made.config.write_text(made.config.read_text() + SINK.format(port=refusing.server_port))
        daemon = _start(demo.INGESTD, "serve", "--config", str(made.config))
        try:
            _take_pictures(folder, Path(name, "profile"))
        finally:
            daemon.terminate()
            daemon.wait()
    return 0


def _take_pictures(folder: Path, profile: Path) -> None:
    time.sleep(3)
    arguments = [f"--folder={folder}", f"--rate={RATE}", "--seed=7"]
    traffic = _start(sys.executable, "-m", "scripts.demo_traffic", *arguments)
    try:
        time.sleep(FILLED)
        IMAGES.mkdir(exist_ok=True)
        with Browser(profile) as browser:
            for picture in PICTURES:
                tab = browser.tab(width=WIDTH, height=HEIGHT, dark=picture.dark)
                tab.open(f"http://127.0.0.1:{OPS_PORT}/#{picture.fragment}")
                tab.wait_for(f"document.readyState === 'complete' && ({picture.ready})")
                time.sleep(1)
                file = IMAGES / f"operators-{picture.name}.png"
                tab.picture(file, height=HEIGHT)
                sys.stdout.write(f"{file}: {file.stat().st_size // 1000} kB\n")
                tab.close()
    finally:
        traffic.terminate()
        traffic.wait()


def _start(*command: str) -> subprocess.Popen[bytes]:
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=silent, stderr=silent)  # noqa: S603 - the commands are ingestd and its demo


if __name__ == "__main__":
    sys.exit(main())
