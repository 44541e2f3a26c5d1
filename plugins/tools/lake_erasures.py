"""The erasures that a lake has: the persons to forget, and the records in it without them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import parse_time
from ingestd.support.record_head import read_head
from ingestd.support.unusable_ids import UnusableIds

from .forget.traces import ERASURE, Traces, blanked

__all__ = ["Erasures"]


class _Erasure(NamedTuple):
    id: str
    until: int
    """The time up to which records count as earlier ones, in milliseconds."""
    persons: Sequence[Traces]


class Erasures:
    def __init__(self, bodies: Iterable[str], unusable_ids: UnusableIds, done: Iterable[str] = ()) -> None:
        """`bodies` are the records of erasures, `done` the ids of those that were carried out."""
        done = {*done}
        found = [_read(body, unusable_ids) for body in bodies]
        self._erasures = [each for each in found if each.id not in done and each.persons]
        self.ids = [each.id for each in self._erasures]
        texts = {
            text
            for erasure in self._erasures
            for person in erasure.persons
            for id_ in [person.user_id, *person.anonymous_ids]
            if id_ is not None
            for text in ((id_,) if id_.isdigit() else (json.dumps(id_), json.dumps(id_, ensure_ascii=False)))
        }
        self._pattern = re.compile("|".join(map(re.escape, sorted(texts)))) if texts else None
        """Finds the ids of all persons to forget in the text of a record."""

    def concern(self, text: str) -> bool:
        """Whether the text of a record may name one of the persons."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def blanked(self, record: Record) -> bytes | None:
        """The body of the record without the persons to forget, or None if it has none of them."""
        body = None
        if not self.concern(record.body.decode()):
            return body
        for erasure in self._erasures:
            for person in erasure.persons if record.at <= erasure.until else ():
                found = blanked(record, person)
                if found is not None:
                    body, record = found, msgspec.structs.replace(record, body=found)
        return body

    def blanked_too(self, record: Record) -> bytes | None:
        """The same, and an erasure that was carried out names nobody any more."""
        if record.type != ERASURE:
            return self.blanked(record)
        if read_head(record.body).id not in self.ids:
            return None
        return msgspec.json.encode({**record.decode(), "userId": None, "anonymousIds": [], "erased": True})


def _read(body: str, unusable_ids: UnusableIds) -> _Erasure:
    head = read_head(body.encode())
    tenant = head.tenant or ""
    if head.user is None:
        persons = [Traces(tenant, unusable_ids, anonymous_id=name) for name in head.visitors]
    else:
        persons = [Traces(tenant, unusable_ids, user_id=head.user)]
        persons[0].learn(Record(ERASURE, 0, body.encode(), sys.maxsize))
    return _Erasure(head.id or "", parse_time(msgspec.json.decode(body)["erasedAt"]) or 0, persons)
