"""The script behind `make screenshots`: it serves the demo in a new folder, sends a shop's events to it, and saves
pictures of the operators' page to docs/images.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.browser import Browser
from tests.support.daemon import Reply
from tests.support.webhook_server import webhook_server

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


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ingestd-pictures-") as name, webhook_server() as refusing:
        # So there are dead letters.
        refusing.answer = lambda _: Reply(422, {}, b"no product has this number")
        folder = Path(name, "demo")
        demo.make(folder, PORT, OPS_PORT)
        made = demo.read_demo(folder)
        made.config.write_text(made.config.read_text() + SINK.format(port=refusing.port))
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
