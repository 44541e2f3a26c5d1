"""The selection of records in the journal: by type, event key, tenant, ids and time."""

from __future__ import annotations

from collections.abc import Collection

from ingestd.api.events import Record
from ingestd.api.imported import is_completed
from ingestd.support.record_head import read_head

__all__ = ["RecordSelection"]


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
            (not self._keys or head.key in self._keys)
            and self._tenant in {None, head.tenant}
            and self._user in {None, head.user}
            and (self._anonymous is None or self._anonymous in head.visitors)
            and (self._order is None or self._order in head.orders)
        )


def _encoded(text: str) -> bytes:
    # An argument of the command line may contain invalid UTF-8. No record contains it.
    return text.encode(errors="surrogateescape")
