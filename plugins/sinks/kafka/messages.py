"""The message of a record: its topic (the option `topic`), key and headers."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from ingestd.api.events import Record

__all__ = ["Message", "MessageMaker", "TopicTemplate"]

_PLACEHOLDER = re.compile(r"\{(type|tenant)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 249  # characters of a topic


class TopicTemplate:
    """A template for topics. Raises `ValueError`."""

    def __init__(self, template: str) -> None:
        text = _PLACEHOLDER.sub("x", template)
        if "{" in text or "}" in text:
            raise ValueError(f"expected no {{}} except {{type}} and {{tenant}}, got {template!r}")
        if _UNSAFE.search(text) or text in {"", ".", ".."} or len(text) > _LONGEST:
            raise ValueError(f"expected 1 to {_LONGEST} letters, digits, and . _ -, got {template!r}")
        self._template = template
        self.name = template if text == template else None
        """The only topic, or None if there may be several."""

    def of(self, type_: str, tenant: str | None) -> str:
        """The topic of a record. `_` replaces a missing tenant and characters that a topic cannot have."""
        if self.name is not None:
            return self.name
        values = {"type": type_, "tenant": tenant}
        topic = _PLACEHOLDER.sub(lambda match: _UNSAFE.sub("_", values[match[1]] or "") or "_", self._template)
        return topic[:_LONGEST] if topic not in {".", ".."} else "_"


class Message(msgspec.Struct, gc=False):
    id: str
    topic: str
    key: bytes
    body: bytes
    headers: list[tuple[str, bytes]]


class MessageMaker:
    """Makes messages of records.

    The key is tenant and visitor, so that the messages of a visitor are in one partition and in order. A record without
    a visitor has its tenant as the key, and a record without a tenant its id.
    """

    def __init__(self, template: TopicTemplate) -> None:
        self._template = template
        self._shared = lru_cache(1000)(self._share)

    def make(self, record: Record) -> Message:
        envelope = record.envelope()
        tenant, visitor = envelope.tenant, envelope.anonymous_id
        id_ = envelope.id or str(record.position)  # the id is text, unless a plugin breaks that rule
        topic, headers = self._shared(record.type, tenant)
        key = id_ if tenant is None else tenant if visitor is None else f"{tenant}:{visitor}"
        return Message(id_, topic, key.encode(), record.body, [("id", id_.encode()), *headers])

    def _share(self, type_: str, tenant: str | None) -> tuple[str, list[tuple[str, bytes]]]:
        """The topic, and the headers after the first, which many records have in common."""
        headers = [("type", type_.encode())]
        if tenant is not None:
            headers.append(("tenant", tenant.encode()))
        return self._template.of(type_, tenant), headers
