"""Matchers of records: the records of an order, and the records of visitors and of a user."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ingestd.api.events import Record
from ingestd.api.imported import is_completed
from ingestd.support.record_head import RecordHead, read_head
from ingestd.support.unusable_ids import UnusableIds

__all__ = ["OrderRecords", "PersonRecords"]

_MAX_TEXTS = 8  # texts to search a body for; decoding the body costs less than more texts


class OrderRecords:
    """The records of one order: its event, its refunds, and records derived from them."""

    def __init__(self, order: str, tenant: str | None) -> None:
        self._order = order
        self._tenant = tenant
        self._text = order.encode()

    def matches(self, record: Record) -> bool:
        if not _may_contain(record.body, [self._text]) or is_completed(record.body):
            return False
        head = read_head(record.body)
        if self._tenant not in {None, head.tenant}:
            return False
        return self._order in (*head.orders, head.id, head.order_event_id)

    def __len__(self) -> int:
        return 1


class PersonRecords:
    """The records of visitors, or of a user with the visitors that were linked to them.

    A user's records are the records with their userId, and records of their visitors without any userId. The search
    goes backward, so it meets a visitor's link first, and then the visitor's records from before the link.
    """

    def __init__(
        self,
        visitors: Iterable[tuple[str | None, str]],
        user: str | None,
        tenant: str | None,
        unusable_ids: UnusableIds,
    ) -> None:
        """`visitors` are tenants and anonymous ids. `tenant` is None for any."""
        self._visitors = {*visitors}
        self._user = user
        self._tenant = tenant
        self._unusable_ids = unusable_ids
        self._texts: Collection[bytes] = ()
        self._set_texts()

    def _set_texts(self) -> None:
        texts = {visitor for _, visitor in self._visitors} | ({self._user} if self._user is not None else set())
        self._texts = [text.encode("utf-8", "surrogatepass") for text in texts]

    @property
    def visitors(self) -> Collection[tuple[str | None, str]]:
        return self._visitors

    def __len__(self) -> int:
        return len(self._visitors)

    def matches(self, record: Record) -> bool:
        if len(self._texts) <= _MAX_TEXTS and not _may_contain(record.body, self._texts):
            return False
        if is_completed(record.body):
            return False
        head = read_head(record.body)
        if head.tenant is None or self._tenant not in {None, head.tenant}:
            return False
        if self._user is not None and head.user == self._user:
            self._learn(record, head, head.tenant)
            return True
        names_nobody = self._user is None or head.user is None or head.user in self._unusable_ids
        return names_nobody and any(self._knows(head.tenant, visitor) for visitor in head.visitors)

    def _knows(self, tenant: str, visitor: str) -> bool:
        return (tenant, visitor) in self._visitors or (None, visitor) in self._visitors

    def _learn(self, record: Record, head: RecordHead, tenant: str) -> None:
        """Learn the visitor of a record that links it to the user."""
        if not (record.type == "identify" or (record.type == "event" and head.linked is not None)):
            return
        visitor = head.visitor
        if visitor is None or head.linked is False or visitor in self._unusable_ids:
            return
        if not self._knows(tenant, visitor):
            self._visitors.add((tenant, visitor))
            self._set_texts()


def _may_contain(body: bytes, texts: Collection[bytes]) -> bool:
    """A fast search before the costly decoding. Only a backslash can hide a text from it."""
    return b"\\" in body or any(text in body for text in texts)
