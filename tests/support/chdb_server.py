"""The engine of a recent ClickHouse behind a small HTTP server: chDB, which has no HTTP interface.

This is no ClickHouse server: it checks statements, types, settings and tokens on a recent version. It needs
`pip install chdb-core`, about a gigabyte on the disk, so tests that use it are skipped without it.

Run as a program, it serves on the port with data in the folder: `python chdb_server.py PORT FOLDER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import Request, urlopen

__all__ = ["ChdbServer", "chdb_server"]

_PATIENCE = 60.0


class ChdbServer:
    password = ""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def sql(self, query: str) -> str:
        with urlopen(Request(f"{self.url}/", query.encode()), timeout=_PATIENCE) as answer:
            return str(answer.read().decode())

    def rows(self, query: str) -> list[Any]:
        return [json.loads(line) for line in self.sql(f"{query} FORMAT JSONEachRow").split("\n")[:-1]]


@contextmanager
def chdb_server() -> Iterator[ChdbServer]:
    from .ports import free_port

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ingestd-chdb-") as folder:
        process = subprocess.Popen([os.environ.get("CHDB_PYTHON", sys.executable), __file__, str(port), folder])
        try:
            server, deadline = ChdbServer(port), time.monotonic() + _PATIENCE
            while True:
                try:
                    server.sql("SELECT 1")
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield server
        finally:
            process.kill()
            process.wait()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    session: Any

    def do_POST(self) -> None:
        parameters = dict(parse_qsl(urlsplit(self.path).query))
        query = parameters.pop("query", "")
        parameters.pop("wait_end_of_query", None)
        body = self._body().decode("utf-8", "replace")
        if query.startswith("INSERT"):
            settings = ", ".join(f"{name} = '{value}'" for name, value in parameters.items())
            query = query.replace(" FORMAT ", f" SETTINGS {settings} FORMAT ") + "\n" + body
        else:
            query += body
        try:
            status, answer = 200, self.session.query(query, "TabSeparated").bytes()
        except Exception as error:  # noqa: BLE001 - any error of the engine is the answer
            status, answer = 500, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *_: Any) -> None:
        """Nothing: the test's output is for the test."""


def _serve(port: int, folder: str) -> None:
    session = import_module("chdb.session").Session(folder)
    session.query("CREATE DATABASE IF NOT EXISTS default ENGINE = Atomic")
    _Handler.session = session
    HTTPServer(("127.0.0.1", port), _Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
