"""Which records a reader of the journal asks for: by type, event key, tenant, ids and time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from ingestd.api.events import Record

__all__ = ["RecordSelection"]


class _Head(msgspec.Struct, rename="camel"):
    """The members of a record that a selection looks at. A plugin's record may have anything there."""

    key: Any = None
    tenant: Any = None
    user_id: Any = None
    anonymous_id: Any = None
    anonymous_ids: Any = None
    order_id: Any = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Order(msgspec.Struct):
    order_id: Any = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_order = msgspec.json.Decoder(_Order).decode


class RecordSelection:
    """Empty `types` and `keys`, and None, select all records. `since` is included, `until` is not."""

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
        """Each must be in a body without escapes."""
        self._key_texts = [_encoded(key) for key in self._keys]
        """One of them must be in a body without escapes."""

    def matches(self, record: Record) -> bool:
        if self._types and record.type not in self._types:
            return False
        if self._since is not None and record.at < self._since:
            return False
        if self._until is not None and record.at >= self._until:
            return False
        if not self._texts and not self._key_texts:
            return True
        return self._may_match(record.body) and self._body_matches(record.body)

    def _may_match(self, body: bytes) -> bool:
        """Decoding costs far more than a search. Only a backslash can hide a text from the search."""
        if b"\\" in body:
            return True
        if not all(text in body for text in self._texts):
            return False
        return not self._key_texts or any(text in body for text in self._key_texts)

    def _body_matches(self, body: bytes) -> bool:
        try:
            head = _decode_head(body)
        except msgspec.DecodeError:  # a plugin's record may be no object
            return False
        return (
            (not self._keys or (isinstance(head.key, str) and head.key in self._keys))
            and self._tenant in {None, _text(head.tenant)}
            and self._user in {None, _text(head.user_id)}
            and (self._anonymous is None or self._anonymous in _visitors(head))
            and (self._order is None or self._order in _orders(head))
        )


def _encoded(text: str) -> bytes:
    # An argument of the command line may hold bytes that are no text. No record has them.
    return text.encode(errors="surrogateescape")


def _text(value: Any) -> str | None:
    """Ids are texts. A shop's own schema may allow whole numbers."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _visitors(head: _Head) -> list[str | None]:
    """An erasure names several."""
    several = head.anonymous_ids if isinstance(head.anonymous_ids, list) else []
    return [_text(each) for each in (head.anonymous_id, *several)]


def _orders(head: _Head) -> list[str | None]:
    """An event has its order in `data`, an attribution at the top."""
    try:
        in_data = _decode_order(head.data).order_id
    except msgspec.DecodeError:  # a plugin's record may have anything there
        in_data = None
    return [_text(each) for each in (head.order_id, in_data)]
