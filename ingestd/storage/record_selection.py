"""The selection of records in the journal: by type, event key, tenant, ids and time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from ingestd.api.events import Record
from ingestd.api.imported import is_completed

__all__ = ["RecordHead", "RecordSelection", "read_head"]


class RecordHead(msgspec.Struct, rename="camel"):
    """The members of a record that a selection compares. In a plugin's record they may have any type."""

    id: Any = None
    key: Any = None
    tenant: Any = None
    user_id: Any = None
    anonymous_id: Any = None
    anonymous_ids: Any = None
    linked: Any = None
    order_id: Any = None
    order_event_id: Any = None
    data: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def visitors(self) -> list[str | None]:
        """The visitors of the record. An erasure has several."""
        several = self.anonymous_ids if isinstance(self.anonymous_ids, list) else []
        return [_text(each) for each in (self.anonymous_id, *several)]

    @property
    def user(self) -> str | None:
        return _text(self.user_id)

    @property
    def orders(self) -> list[str | None]:
        """The orders of the record. An event has its order in `data`, an attribution at the top level."""
        try:
            in_data = _decode_order(self.data).order_id
        except msgspec.DecodeError:  # `data` of a plugin's record may have any type
            in_data = None
        return [_text(each) for each in (self.order_id, in_data)]


class _Order(msgspec.Struct):
    order_id: Any = None


_decode_head = msgspec.json.Decoder(RecordHead).decode
_decode_order = msgspec.json.Decoder(_Order).decode


def read_head(body: bytes) -> RecordHead | None:
    """The head of a record, or None if it is no object: a plugin's record may be another value."""
    try:
        return _decode_head(body)
    except msgspec.DecodeError:
        return None


class RecordSelection:
    """Empty `types` and `keys`, and None, select all records. `since` is included, `until` is not.

    A record that an import has stored once more is selected once, as it was stored last.
    """

    def __init__(
        self,
        *,
        types: Collection[str] = (),
        keys: Collection[str] = (),
        tenant: str | None = None,
        user: str | None = None,
        anonymous: str | None = None,
        order: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self._types, self._keys = frozenset(types), frozenset(keys)
        self._tenant, self._user, self._anonymous, self._order = tenant, user, anonymous, order
        self._since, self._until = since, until
        self._texts = [_encoded(each) for each in (tenant, user, anonymous, order) if each is not None]
        """Texts that a body without escapes must contain, all of them."""
        self._key_texts = [_encoded(key) for key in self._keys]
        """Texts of which a body without escapes must contain at least one."""

    def matches(self, record: Record) -> bool:
        if (self._types and record.type not in self._types) or is_completed(record.body):
            return False
        if self._since is not None and record.at < self._since:
            return False
        if self._until is not None and record.at >= self._until:
            return False
        if not self._texts and not self._key_texts:
            return True
        return self._may_match(record.body) and self._body_matches(record.body)

    def _may_match(self, body: bytes) -> bool:
        """A fast search before the costly decoding. Only a backslash can hide a text from it."""
        if b"\\" in body:
            return True
        if not all(text in body for text in self._texts):
            return False
        return not self._key_texts or any(text in body for text in self._key_texts)

    def _body_matches(self, body: bytes) -> bool:
        head = read_head(body)
        return (
            head is not None
            and (not self._keys or (isinstance(head.key, str) and head.key in self._keys))
            and self._tenant in {None, _text(head.tenant)}
            and self._user in {None, head.user}
            and (self._anonymous is None or self._anonymous in head.visitors)
            and (self._order is None or self._order in head.orders)
        )


def _encoded(text: str) -> bytes:
    # An argument of the command line may contain invalid UTF-8. No record contains it.
    return text.encode(errors="surrogateescape")


def _text(value: Any) -> str | None:
    """An id as text. A shop's own schema may allow whole numbers."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
