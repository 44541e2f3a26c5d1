"""The message of a record: its topic, key and headers."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from ingestd.api.events import Record

from .topic import TopicTemplate

__all__ = ["Message", "MessageMaker"]


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
