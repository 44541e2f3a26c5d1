"""A schema registry that follows Confluent's documented API as far as the kafka sink uses it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

__all__ = ["SchemaRegistry", "schema_registry"]


class SchemaRegistry:
    """Gives equal schemas of all subjects the same id."""

    def __init__(self, port: int) -> None:
        self.url = f"http://user:secret@127.0.0.1:{port}/base"
        self.subjects: dict[str, list[int]] = {}
        """The ids of the versions of each subject."""
        self.schemas: list[Any] = []
        """The schema with the id 1, and the others in the order of their ids."""
        self.posts = 0
        self.refuses: tuple[int, str] | None = None
        """The status and the message of all answers, if it refuses every request."""
        self.says: object = None
        """What it answers to every request instead. Bytes are no JSON."""

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if self.refuses is not None:
            return self.refuses[0], {"error_code": self.refuses[0] * 100, "message": self.refuses[1]}
        if self.says is not None:
            return 200, self.says
        if body is None:
            return (200, ["JSON", "PROTOBUF", "AVRO"]) if path == "/base/schemas/types" else (404, {})
        self.posts += 1
        _, base, subjects, subject, versions = path.split("/")
        assert (base, subjects, versions, body["schemaType"]) == ("base", "subjects", "versions", "JSON")
        schema = json.loads(body["schema"])
        if schema not in self.schemas:
            self.schemas.append(schema)
        id_ = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(unquote(subject), [])
        if id_ not in ids:
            ids.append(id_)
        return 200, {"id": id_}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            assert self.headers["Authorization"] == "Basic dXNlcjpzZWNyZXQ="
            status, value = registry.answer(self.path, body)
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = SchemaRegistry(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield registry
        server.shutdown()
