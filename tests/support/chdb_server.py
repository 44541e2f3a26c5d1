"""A recent ClickHouse for a test: the engine of chDB behind the part of its HTTP interface that is needed.

Debian's server is of 2018. `python -m tests.support.chdb_server FOLDER` prints its port, and ends with its input.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

__all__ = ["ChdbServer", "chdb_server"]

ROOT = Path(__file__).parents[2]
_NO_SETTINGS = {"query", "database", "wait_end_of_query", "default_format"}


class ChdbServer:
    """Anybody may do anything, as the user `default` without a password."""

    password = ""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def sql(self, query: str) -> str:
        with urlopen(f"{self.url}/", query.encode(), timeout=60) as answer:
            return str(answer.read().decode())

    def rows(self, query: str) -> list[Any]:
        return [json.loads(line) for line in self.sql(f"{query} FORMAT JSONEachRow").splitlines()]


@contextmanager
def chdb_server() -> Iterator[ChdbServer]:
    with TemporaryDirectory(prefix="ingestd-chdb-") as folder:
        command = [sys.executable, "-m", "tests.support.chdb_server", folder]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield ChdbServer(int(process.stdout.readline()))
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    query: Any

    def log_message(self, *_: object) -> None:
        """Nothing: the output is the port alone."""

    def do_POST(self) -> None:
        settings = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        text, body = settings.get("query", ""), self._body()
        settings = {name: value for name, value in settings.items() if name not in _NO_SETTINGS}
        if text.lstrip().upper().startswith("INSERT") and settings:
            listed = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
            text = text.replace(" FORMAT ", f" SETTINGS {listed} FORMAT ", 1)
        try:
            found, status, code = self.query(f"{text}\n{body}" if text else body), 200, ""
        except RuntimeError as error:
            match = re.search(r"Code: (\d+)", str(error))
            found, status, code = str(error).encode(), 500, match[1] if match else "0"
        self.send_response(status)
        self.send_header("Content-Length", str(len(found)))
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.end_headers()
        self.wfile.write(found)

    do_GET = do_POST  # noqa: N815 - the name is http.server's

    def _body(self) -> str:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts).decode()


def _main(folder: str) -> None:
    # It has no types.
    session: Any = import_module("chdb.session").Session(folder)
    lock = threading.Lock()

    def query(text: str) -> bytes:
        with lock:
            return bytes(session.query(text, "TabSeparated").bytes() or b"")

    _Handler.query = staticmethod(query)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _main(sys.argv[1])
