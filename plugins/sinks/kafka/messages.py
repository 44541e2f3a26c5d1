"""The message of a record: its topic (the option `topic`), key and headers."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.support.record_head import NO_MEMBER, members_reader

if TYPE_CHECKING:
    from .registry import Registry

__all__ = ["Message", "MessageMaker", "Subject", "TopicTemplate", "Unregistered"]

_PLACEHOLDER = re.compile(r"\{(type|tenant|key)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 249  # characters of a topic
_PLAIN_KEY = re.compile(r"(?!.*-[0-9a-f]{8}$)[A-Za-z0-9-][A-Za-z0-9 -]{0,99}")
"""An event key that ends like one with a hash gets another hash."""
_MOST_TOPICS = 1000


class TopicTemplate:
    """A template for topics. Raises `ValueError`."""

    def __init__(self, template: str) -> None:
        text = _PLACEHOLDER.sub("x", template)
        if "{" in text or "}" in text:
            raise ValueError(f"expected no {{}} except {{type}}, {{tenant}} and {{key}}, got {template!r}")
        if _UNSAFE.search(text) or text in {"", ".", ".."} or len(text) > _LONGEST:
            raise ValueError(f"expected 1 to {_LONGEST} letters, digits, and . _ -, got {template!r}")
        self._template = template
        self.name = template if text == template else None
        """The only topic, or None if there may be several."""

    def of(self, type_: str, tenant: str | None, key: str | None = None) -> str:
        """The topic of a record. `_` replaces a missing value and characters that a topic cannot have."""
        if self.name is not None:
            return self.name
        values = {"type": type_, "tenant": tenant, "key": None if key is None else _name_of(key)}
        topic = _PLACEHOLDER.sub(lambda match: _UNSAFE.sub("_", values[match[1]] or "") or "_", self._template)
        if len(topic) > _LONGEST and "{key}" in self._template:
            return f"{topic[: _LONGEST - 9]}-{_hash(topic)}"  # what is cut off may tell two keys apart
        return topic[:_LONGEST] if topic not in {".", ".."} else "_"


def _name_of(key: str) -> str:
    """A name for an event key. Two keys never have the same: where `_` for a space could make it so, a hash follows."""
    if _PLAIN_KEY.fullmatch(key):
        return key
    # Without dots, because Kafka takes a name with a dot for the one with `_` in its place.
    return f"{key[:100].replace('.', '_')}-{_hash(key)}"


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


class Subject(NamedTuple):
    """What the registry has schemas of: the events with a key in a topic."""

    topic: str
    key: str

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.key}"


class Unregistered(Exception):
    """The schema of a subject is to be registered before a message of it can be made."""

    def __init__(self, subjects: Collection[Subject]) -> None:
        super().__init__()
        self.subjects = subjects


class _Head(msgspec.Struct, rename="camel", gc=False):
    """The members of a record that its message repeats. A member that the record lacks is None."""

    id: str | None = None
    tenant: str | None = None
    anonymous_id: str | None = None
    key: str | None = None
    schema: str | None = None
    mark: msgspec.Raw = msgspec.field(name="import", default=NO_MEMBER)
    decided_at: msgspec.Raw = NO_MEMBER
    """Only imported records have a mark, and only derived ones this. All others were received when they were stored."""


_read_head = members_reader(_Head)


class Message(msgspec.Struct, gc=False):
    identity: tuple[str, int]
    """The id and the position of the record. An import that goes on can store a record again, with the same id."""
    topic: str
    key: bytes
    body: bytes
    headers: list[tuple[str, bytes]]
    at: int
    """The time of the message in milliseconds."""


class MessageMaker:
    """Makes messages of records.

    The key is tenant and visitor, so that the messages of a visitor are in one partition and in order. A record without
    a visitor has its tenant as the key, and a record without a tenant its id.
    """

    def __init__(self, template: TopicTemplate, registry: Registry | None = None) -> None:
        self._template = template
        self._registry = registry
        self._shared = lru_cache(1000)(self._share)
        self._topics: set[str] = set()

    def make(self, record: Record) -> Message:
        """Raises `ValueError` for a record that would need one topic too many, and `Unregistered`."""
        head = _read_head(record.body)
        tenant, visitor = head.tenant, head.anonymous_id
        id_ = head.id or str(record.position)  # the id is text, unless a plugin breaks that rule
        topic, headers = self._shared(record.type, tenant, head.key, head.schema)
        key = id_ if tenant is None else tenant if visitor is None else f"{tenant}:{visitor}"
        at = record.received_at() if head.mark or head.decided_at else record.at
        own = [("id", id_.encode()), ("position", b"%d" % record.position)]
        # Brokers refuse a time that is far ahead of theirs.
        now = int(time.time() * 1000)
        identity = (id_, record.position)
        return Message(identity, topic, key.encode(), record.body, [*own, *headers], min(at, now))

    def _share(
        self, type_: str, tenant: str | None, key: str | None, schema: str | None
    ) -> tuple[str, list[tuple[str, bytes]]]:
        """The topic, and the headers that many records have in common."""
        topic = self._template.of(type_, tenant, key)
        if topic not in self._topics and len(self._topics) >= _MOST_TOPICS:
            raise ValueError(f"it would need one more topic than {_MOST_TOPICS}, {topic}")
        self._topics.add(topic)
        values = {"type": type_, "tenant": tenant, "key": key, "schema": schema}
        headers = [(name, value.encode()) for name, value in values.items() if value is not None]
        schema_id = None if self._registry is None else self._registry.id_of(topic, key)
        return topic, headers if schema_id is None else [*headers, ("schema-id", schema_id)]
