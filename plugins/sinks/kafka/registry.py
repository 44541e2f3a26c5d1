"""A schema registry with Confluent's API: it gets the schema of each event key, and gives an id for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ingestd.api.errors import ConfigError, SinkFailure, SinkRetry
from ingestd.support.terminal import printable

from ..http_servers import HttpServer, basic
from .messages import Subject, Unregistered
from .settings import KafkaOptions

__all__ = ["Registry"]

_TIMEOUT = 10.0
_MOST_TEXT = 300


class Registry(HttpServer):
    """Raises `ConfigError` for options that can never work, and `SinkRetry` for a registry that does not answer."""

    def __init__(self, options: KafkaOptions, path: str) -> None:
        url = str(options.schema_registry)
        ca_file = options.ca_file if url.lower().startswith("https:") else None  # otherwise it is for the brokers only
        super().__init__(url, ca_file, path, "https://registry.example:8081", "schema_registry")
        if self.parts.query or self.parts.fragment:
            raise ConfigError(f"{path}.schema_registry: takes no parameters")
        self._url = self.parts._replace(netloc=self.host, path=self.parts.path.rstrip("/")).geturl()
        self._headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if self.user is not None:
            self._headers["Authorization"] = basic(self.user, self.password)
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
                raise SinkRetry(f"the schema registry {self.host} gives no id for {subject.name}")
            self._ids[subject] = b"%d" % answer["id"]

    async def check(self) -> None:
        types = await self._ask("/schemas/types")
        if not isinstance(types, list) or "JSON" not in types:
            raise SinkRetry(f"the schema registry {self.host} takes no JSON Schemas")

    async def _ask(self, path: str, body: bytes | None = None, about: str = "") -> Any:
        method = "GET" if body is None else "POST"
        try:
            answer = await self.ask(f"{self._url}{path}", self._headers, method=method, seconds=_TIMEOUT, body=body)
        except (SinkRetry, SinkFailure) as error:
            raise SinkRetry(f"the schema registry: {error}") from None
        try:
            found = msgspec.json.decode(answer.text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if answer.status != 200:
            message = found.get("message", "") if isinstance(found, dict) else ""
            told = f": {printable(str(message))[:_MOST_TEXT]}" if message else ""
            raise SinkRetry(f"the schema registry {self.host} answers {answer.status}{about}{told}")
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
