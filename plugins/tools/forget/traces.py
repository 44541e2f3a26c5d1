"""The traces of a person in records: which records are theirs, and the blanked bodies of these records."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.privacy import Visitors
from ingestd.api.store import key_digest
from ingestd.support.record_head import RecordHead, read_head
from ingestd.support.unusable_ids import UnusableIds

__all__ = ["ERASURE", "Traces", "blanked"]

ERASURE = "erasure"

_FROM_CALLERS = frozenset(["event", "identify"])
_KEPT = frozenset([
    "id", "type", "tenant", "endpoint", "signed", "receivedAt", "timestamp", "key", "sessionIsNew", "linked", "import",
    "schema",
])  # fmt: skip
_CONTENT = frozenset(["data", "context", "extra", "traits"])
_IDS = ("anonymousId", "userId", "sessionId", "dispatchId", "messageId", "clickId")
_ALWAYS = sys.maxsize  # a position after every record


class Traces:
    """The ids of one person. It learns a user's visitors from records. A visitor alone needs no learning.

    A user's records are the records with their userId, and records of their visitors without any userId. Raises
    `CommandError` for an unusable id: its records belong to many persons.
    """

    def __init__(
        self, tenant: str, unusable_ids: UnusableIds, *, user_id: str | None = None, anonymous_id: str | None = None
    ) -> None:
        if user_id is not None and user_id in unusable_ids:
            raise CommandError(
                f"{user_id!r} is not the id of one user, and many visitors may have sent it;"
                " forget the visitors with --anonymous"
            )
        if anonymous_id is not None and anonymous_id in unusable_ids:
            raise CommandError(
                f"{anonymous_id!r} is not the id of one visitor, and many may have sent it; it has no state;"
                " forget its records with --user, which finds the records with that userId"
            )
        self._unusable_ids = unusable_ids
        self.tenant = tenant
        self.user_id = user_id
        self.tenants: set[str] = set()
        """All tenants seen in records."""
        self._names: dict[str, int] = {} if anonymous_id is None else {anonymous_id: _ALWAYS}
        # By anonymousId: the last position up to which records without a userId belong to this user.
        self._linked: set[str] = set()
        self._unnamed: set[str] = set()

    def add(self, visitors: Visitors) -> None:
        """Add the user's present visitors. Their anonymousIds are learned from records."""
        self._unnamed.update(digest for digest in visitors.digests if digest not in self._linked)
        self._linked.update(visitors.digests)

    def learn_from(self, others: Traces) -> None:
        """Learn what the records of another partition tell of the person."""
        self.add(Visitors([*others._linked]))
        self._names |= dict.fromkeys(others.anonymous_ids, _ALWAYS)
        self.tenants |= others.tenants

    def learn(self, record: Record) -> None:
        if record.type not in _FROM_CALLERS and record.type != ERASURE:
            return
        head = read_head(record.body)
        if head.tenant is not None:
            self.tenants.add(head.tenant)
        if self.user_id is None or head.tenant != self.tenant:
            return
        if record.type == ERASURE:
            # An earlier erasure may have been interrupted: its visitors are still to be erased, up to its position.
            if head.user == self.user_id:
                for name in head.visitors:
                    self._names[name] = max(self._names.get(name, 0), record.position)
            return
        for name in head.visitors:
            if name not in self._unusable_ids and (self._connects(record, head) or self._is_linked(name)):
                self._names[name] = _ALWAYS

    def _connects(self, record: Record, head: RecordHead) -> bool:
        """Whether this is an identify request of the user, or an event that linked its visitor to the user."""
        return head.user == self.user_id and (record.type == "identify" or head.linked is not None)

    def _is_linked(self, anonymous_id: str) -> bool:
        """Whether this is a linked visitor whose anonymousId was unknown so far."""
        if not self._unnamed:
            return False
        digest = key_digest(self.tenant, anonymous_id)
        known = digest in self._unnamed
        self._unnamed.discard(digest)
        return known

    def owns(self, anonymous_id: object, user_id: object, position: int) -> bool:
        """Whether a record at this position of the journal with these ids belongs to the person."""
        ours = isinstance(anonymous_id, str) and self._names.get(anonymous_id, 0) >= position
        if self.user_id is None:
            return ours
        names_nobody = user_id is None or (isinstance(user_id, str) and user_id in self._unusable_ids)
        return user_id == self.user_id or (ours and names_nobody)

    def __len__(self) -> int:
        """The number of known ids, which only grows."""
        return len(self._names) + len(self._linked)

    @property
    def anonymous_ids(self) -> list[str]:
        """The known anonymousIds of the visitors, except ids that only earlier erasures name."""
        return sorted(name for name, until in self._names.items() if until == _ALWAYS)

    @property
    def visitors(self) -> list[str]:
        """The digests of the person's present visitors."""
        return sorted(self._linked if self.user_id is not None else self._present())

    @property
    def former(self) -> list[str]:
        """The digests of the user's former visitors."""
        return [] if self.user_id is None else sorted(self._present() - self._linked)

    def _present(self) -> set[str]:
        return {key_digest(self.tenant, name) for name in self.anonymous_ids}


def blanked(record: Record, traces: Traces) -> bytes | None:
    """The record's body without the person, None if the record does not belong to them."""
    if record.type == ERASURE:
        return None
    if record.type in _FROM_CALLERS:
        head = read_head(record.body)
        if head.erased or head.tenant != traces.tenant:
            return None
        if not traces.owns(head.visitor, head.user, record.position):
            return None
        value = {
            name: member if name in _KEPT else {} if name in _CONTENT else None
            for name, member in record.decode().items()
        }
        return msgspec.json.encode({**value, "erased": True})
    value = record.decode()
    if value.get("tenant") != traces.tenant or not _without_ids(value, traces, record.position):
        return None
    return msgspec.json.encode(value)


def _without_ids(value: dict[str, Any], traces: Traces, position: int) -> bool:
    """Remove the person's ids from a derived record in place. Returns whether there were any.

    An object belongs to the person if its ids do. A `userId` also counts for all objects inside its object. All ids
    inside the person's objects are removed: for example, nothing remains of the visitor of a touchpoint.
    """
    changed = False
    waiting: list[tuple[Any, object, bool]] = [(value, None, False)]
    while waiting:
        part, user_id, theirs = waiting.pop()
        if isinstance(part, dict):
            user_id = part.get("userId", user_id)
            theirs = theirs or traces.owns(part.get("anonymousId"), user_id, position)
            if theirs and any(part.get(name) is not None for name in _IDS):
                changed = True
                part.update({name: None for name in _IDS if name in part})
                if part is value:
                    part["erased"] = True
            waiting += [(inner, user_id, theirs) for inner in part.values()]
        elif isinstance(part, list):
            waiting += [(inner, user_id, theirs) for inner in part]
    return changed
