"""The erasures of a lake: the records of forgotten persons, and the files in which they are blank by now."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.times import parse_time
from ingestd.support.record_head import read_head
from ingestd.support.unusable_ids import UnusableIds

from .forget.traces import ERASURE, Traces, blanked

__all__ = ["Erasure", "Erasures", "Met", "read_erasure"]

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+')
"""A text or a whole number of JSON."""


class Erasure(NamedTuple):
    id: str
    until: int
    """The time up to which records count as earlier ones, in milliseconds."""
    persons: Sequence[Traces]


def read_erasure(body: bytes, unusable_ids: UnusableIds) -> Erasure:
    """A record of the type erasure. One of a plugin that names nobody, or no time, blanks nothing."""
    head, at = read_head(body), msgspec.json.decode(body).get("erasedAt")
    tenant: Any = head.tenant  # a transform may drop it, from all records
    persons = []
    with suppress(CommandError):  # an id that was declared unusable since then: many persons have sent it
        if head.user is not None:
            persons = [Traces(tenant, unusable_ids, user_id=head.user)]
            persons[0].learn(Record(ERASURE, 0, body, sys.maxsize))
    for name in head.visitors if head.user is None else ():
        with suppress(CommandError):
            persons.append(Traces(tenant, unusable_ids, anonymous_id=name))
    until = parse_time(at) if isinstance(at, str) else None
    return Erasure(head.id or "", 0 if until is None else until, persons)


class Erasures:
    """Finds the records that erasures blank. The number of erasures does not matter for its speed."""

    def __init__(self, erasures: Iterable[Erasure]) -> None:
        self.ids: set[str] = set()
        self._by_token: dict[str, list[tuple[int, Traces]]] = defaultdict(list)
        """By the text of a person's id in JSON: until when, and who."""
        for erasure in erasures:
            self.ids.add(erasure.id)
            for person in erasure.persons:
                for id_ in {person.user_id, *person.anonymous_ids} - {None}:
                    self._by_token[f'"{id_}"'].append((erasure.until, person))
                    self._by_token[str(id_)].append((erasure.until, person))  # a number

    def blanked(self, record: Record) -> bytes | None:
        """The body of the record without the persons to forget, or None if it has none of them."""
        if not self._by_token:
            return None
        tokens = {*_TOKEN.findall(record.body.decode())}
        tokens.update([f'"{json.loads(each)}"' for each in tokens if "\\" in each])
        body = None
        for token in tokens:
            for until, person in self._by_token.get(token, ()):
                found = blanked(record, person) if record.at <= until else None
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


class Met(msgspec.Struct):
    """The erasures that were carried out, and the files that had nothing of their persons then, or have nothing now.

    A file that is not among them came later, such as one of another partition, a replay or a backup, so all erasures
    are carried out in it.
    """

    erasures: Collection[str] = ()
    files: Mapping[str, int] = {}
    """Sizes in bytes, by path."""

    @classmethod
    def read(cls, content: bytes | None) -> Met:
        """Nothing if the content cannot be read: then every file is looked at again."""
        with suppress(msgspec.MsgspecError, UnicodeError):
            return cls() if content is None else msgspec.json.decode(content, type=cls)
        return cls()
