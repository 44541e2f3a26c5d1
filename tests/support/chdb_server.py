"""The engine of a recent ClickHouse (chDB) behind the part of the HTTP interface that the sink uses.

`python -m tests.support.chdb_server PORT FOLDER` serves it, in a process of its own because chDB has one engine each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import Request, urlopen

from .ports import free_port

__all__ = ["ChdbServer", "chdb_server"]

_CODE = re.compile(r"Code: (\d+)")
_OF_HTTP = {"query", "wait_end_of_query"}


class ChdbServer:
    """Anybody may do anything, as the user `default` without a password."""

    password = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def sql(self, query: str) -> str:
        with urlopen(Request(f"{self.url}/", query.encode()), timeout=30) as answer:
            return str(answer.read().decode())

    def rows(self, query: str) -> list[Any]:
        return [json.loads(line) for line in self.sql(f"{query} FORMAT JSONEachRow").splitlines()]


@contextmanager
def chdb_server() -> Iterator[ChdbServer]:
    server = ChdbServer()
    with TemporaryDirectory(prefix="ingestd-chdb-") as folder:
        process = subprocess.Popen([sys.executable, "-m", "tests.support.chdb_server", str(server.port), folder])
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    server.sql("SELECT 1")
                    break
                except OSError:
                    assert process.poll() is None, "chDB does not start"
                    assert time.monotonic() < deadline, "chDB does not answer"
                    time.sleep(0.05)
            yield server
        finally:
            process.kill()
            process.wait()


def _serve(port: int, folder: str) -> None:
    from chdb.session import Session

    session: Any = Session(folder)  # type: ignore[no-untyped-call]  # the package has no types

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            parameters = dict(parse_qsl(urlsplit(self.path).query))
            body = self._body().decode()
            status, text = 200, b""
            try:
                text = session.query(_statement(parameters, body), "TabSeparated").bytes() or b""
            except Exception as error:  # noqa: BLE001 - whatever the engine raises is the answer
                status, text = 500, str(error).encode()
            self.send_response(status)
            code = _CODE.search(text.decode()) if status == 500 else None
            if code is not None:
                self.send_header("X-ClickHouse-Exception-Code", code[1])
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _statement(parameters: dict[str, str], body: str) -> str:
    """The statement with its settings, which the HTTP interface takes as parameters, and its data."""
    query = parameters.get("query", "")
    settings = ", ".join(f"{name} = '{value}'" for name, value in parameters.items() if name not in _OF_HTTP)
    if settings:
        query = query.replace(" FORMAT ", f" SETTINGS {settings} FORMAT ")
    return f"{query}\n{body}"


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
