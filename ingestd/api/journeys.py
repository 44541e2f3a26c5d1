"""Journeys on the operators' page: what an operator asks for, and what plugins know about it.

The daemon reads the records of a person or an order from the journal, within bounds. Plugins lead it to these records,
and explain them. The page shows all texts literally, never as HTML.

The page may hide ids, names of visitors and free texts (`[ops] show_data`). So ids must be in the members for ids, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .events import Record
from .panels import Table

__all__ = [
    "JourneyExplanation",
    "JourneyFact",
    "JourneyLead",
    "JourneyMoment",
    "JourneyPart",
    "JourneyQuery",
    "JourneyRecords",
]


class JourneyQuery(Struct, frozen=True):
    """The question of an operator: one of order, user and visitor, as sent by callers."""

    order: str | None = None
    """The id of an order, or the id of the event of an order without id."""
    user: str | None = None
    visitor: str | None = None
    tenant: str | None = None
    """None for any tenant."""


class JourneyLead(Struct, frozen=True):
    """Visitors that belong to the query, or the position of its records in the journal. The rest may be unknown."""

    tenant: str
    visitors: Sequence[str] = ()
    """The anonymous ids of visitors."""
    position: int | None = None
    """The position of the order's first record."""
    derived: int = 0
    """The number of records that plugins have derived from the order. The search ends when it has found them."""


class JourneyRecords(Struct, frozen=True):
    """The query, the people that it led to, and their records."""

    query: JourneyQuery
    people: Sequence[JourneyLead]
    """Who was looked for, by tenant."""
    records: Sequence[Record]
    """The records that were found, in the order of the journal."""
    oldest: int
    """The position of the oldest record that the journal still has."""


class JourneyMoment(Struct, frozen=True):
    """One thing that happened, on the time line."""

    at: int
    """Milliseconds."""
    kind: str
    """One or two words, such as `touchpoint`."""
    title: str
    tenant: str
    visitor: str | None = None
    record_id: str | None = None
    """The id of its record."""
    detail: str = ""
    """Free text of callers, such as search words. The page shows it only if it may show all data."""
    is_removed: bool = False
    """Whether the journal has removed its record."""


class JourneyFact(Struct, frozen=True):
    """One line below the title of an explanation."""

    name: str
    value: str | None
    names: Literal["order", "visitor", "user"] | None = None
    """The kind of id that the value is. None for a value that is no id of a caller."""


class JourneyExplanation(Struct, frozen=True):
    """What a plugin says about one order, or another subject."""

    title: str
    facts: Sequence[JourneyFact] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


class JourneyPart(Struct, frozen=True):
    """What one plugin adds to a journey."""

    moments: Sequence[JourneyMoment] = ()
    explanations: Sequence[JourneyExplanation] = ()
    notes: Sequence[str] = ()
