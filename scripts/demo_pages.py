"""The script behind `make demo`: the daemon of `make run`, and a small shop whose pages send their events to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .demo import BIN, INGESTD, make, make_parser, read_demo

SHOP = Path(__file__).parents[1] / "examples" / "shop"


class PageHandler(SimpleHTTPRequestHandler):
    """Serves the files of the shop, and the module with these values."""

    def __init__(self, values: Mapping[str, str], *arguments: Any) -> None:
        self._values = values
        super().__init__(*arguments, directory=str(SHOP))

    def log_message(self, *_: object) -> None:
        """Say nothing of requests: the terminal has the daemon's log."""

    def do_GET(self) -> None:
        if self.path != "/config.js":
            super().do_GET()
            return
        body = "".join(f"export const {name} = {json.dumps(value)}\n" for name, value in self._values.items()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--shop-port", type=int, required=True)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.port, arguments.ops_port)
    demo = read_demo(arguments.folder)
    values = {
        "host": f"http://{demo.address}",
        "key": demo.keys["public"]["id"],
        "operators": f"http://{demo.ops_address}/",
    }
    server = ThreadingHTTPServer(("127.0.0.1", arguments.shop_port), partial(PageHandler, values))
    server.daemon_threads = True  # a browser keeps its connections
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(
        f"The shop:                http://127.0.0.1:{arguments.shop_port}/\n"
        f"The page for operators:  http://{demo.ops_address}/\n"
        "For commands, in another terminal:\n"
        f"  export PATH={BIN}:$PATH {demo.variables}\n"
        "Stop with Ctrl-C.\n\n"
    )
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [INGESTD, "serve", "--config", str(demo.config)]
    # Ctrl-C reaches only this process: a second signal would hurry the daemon's end.
    with subprocess.Popen(command, start_new_session=True) as daemon:  # noqa: S603 - the command is ingestd
        try:
            return daemon.wait()
        except KeyboardInterrupt:
            daemon.terminate()
            return daemon.wait()


if __name__ == "__main__":
    sys.exit(main())
