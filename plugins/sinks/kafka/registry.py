"""A schema registry with Confluent's API: it gets the schema of each event key, and gives an id for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders

from ingestd.api import __version__
from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.http_request import ask
from ingestd.support.terminal import printable

from ..http_servers import advice, connection_failure, read_url, trust
from .messages import Subject, Unregistered
from .settings import KafkaOptions

__all__ = ["Registry"]

_TIMEOUT = 10.0
_MOST_TEXT = 300


class Registry:
    """Raises `ConfigError` for options that can never work, and `SinkRetry` for a registry that does not answer."""

    def __init__(self, options: KafkaOptions, path: str) -> None:
        option = f"{path}.schema_registry"
        parts, self._host, _ = read_url(str(options.schema_registry), option, "https://registry.example:8081")
        if parts.query or parts.fragment:
            raise ConfigError(f"{option}: takes no parameters")
        self._url = parts._replace(netloc=self._host, path=parts.path.rstrip("/")).geturl()
        ca_file = options.ca_file if parts.scheme == "https" else None  # otherwise it is for the brokers only
        self._tls = trust(ca_file, parts.scheme, f"{path}.ca_file")
        self._advice = advice(ca_file)
        self._headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.schemas: Mapping[str, Mapping[str, Any]] = {}
        """The schema of each event key."""
        self._ids: dict[Subject, bytes] = {}

    def id_of(self, topic: str, key: str | None) -> bytes | None:
        """The id of the schema of an event, or None for a record without a schema. Raises `Unregistered`."""
        if key is None or key not in self.schemas:
            return None
        subject = Subject(topic, key)
        if subject not in self._ids:
            raise Unregistered([subject])
        return self._ids[subject]

    async def register(self, subjects: Collection[Subject]) -> None:
        """Register the schemas of these subjects. A schema that is there already is not changed."""
        for subject in subjects:
            schema = _of_record(subject.key, self.schemas[subject.key])
            # A schema may name half a character, which only an escape can write.
            body = {"schemaType": "JSON", "schema": json.dumps(schema)}
            path = f"/subjects/{quote(subject.name, safe='')}/versions"
            answer = await self._ask(path, msgspec.json.encode(body), f" for {subject.name}")
            if not isinstance(answer, dict) or type(answer.get("id")) is not int:
                raise SinkRetry(f"the schema registry {self._host} gives no id for {subject.name}")
            self._ids[subject] = b"%d" % answer["id"]

    async def check(self) -> None:
        types = await self._ask("/schemas/types")
        if not isinstance(types, list) or "JSON" not in types:
            raise SinkRetry(f"the schema registry {self._host} takes no JSON Schemas")

    async def _ask(self, path: str, body: bytes | None = None, about: str = "") -> Any:
        request = HTTPRequest(
            f"{self._url}{path}",
            "GET" if body is None else "POST",
            HTTPHeaders(self._headers),
            body=body,
            connect_timeout=_TIMEOUT,
            request_timeout=_TIMEOUT,
            follow_redirects=False,
            user_agent=f"ingestd/{__version__}",
            ssl_options=self._tls,
        )
        answer = await ask(request, most_text=1 << 20, reads_text=lambda _: True)
        if answer.status == 0:
            raise SinkRetry(f"the schema registry: {connection_failure(answer.failure, self._host, self._advice)}")
        try:
            found = msgspec.json.decode(answer.text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if answer.status != 200:
            message = found.get("message", "") if isinstance(found, dict) else ""
            told = f": {printable(str(message))[:_MOST_TEXT]}" if message else ""
            raise SinkRetry(f"the schema registry {self._host} answers {answer.status}{about}{told}")
        return found


def _of_record(key: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a whole record, of the schema of its `data`."""
    return {
        "$schema": data["$schema"],
        "title": key,
        "type": "object",
        "properties": {"id": {"type": "string"}, "type": {"const": "event"}, "key": {"const": key}, "data": data},
        "required": ["id", "type", "key", "data"],
    }
