"""Panels: the tables that a plugin shows on the operators' page. The daemon draws them without the plugin.

The page shows text literally, never as HTML. A page may stay open on a screen, so it must not show personal data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

__all__ = ["Cell", "Column", "Filter", "Option", "Panel", "Table"]

Cell = str | int | float | None


class Column(Struct, frozen=True):
    title: str
    digits: int | None = None
    """The decimal places of its numbers; None for a column of text."""
    bar: bool = False
    """Whether each number also has a bar of that length."""
    whole: float | None = None
    """The number of the longest possible bar, such as 100 for per cents. None: the largest number of the column."""


class Table(Struct, frozen=True):
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    """The most important row first, and no more than some dozens."""
    total: Sequence[Cell] | None = None
    choice: str | None = None
    """The choice to which the table belongs. Of the tables with a choice, a panel shows one choice at a time."""


class Option(Struct, frozen=True):
    """One option of a filter: its value, and the text that people see."""

    value: str
    title: str


class Filter(Struct, frozen=True):
    """A filter of a panel. `name` is the parameter in the page's address and in the hook's `selection`."""

    name: str
    title: str
    options: Sequence[Option]
    """The first option applies to an address without the parameter. The address omits an empty value."""
    chosen: str | None
    """The value that the panel shows. None: the address has a value that does not exist."""


class Panel(Struct, frozen=True):
    title: str
    tables: Sequence[Table]
    note: str = ""
    """A sentence below the title, such as the start of the counts, or the events that are not counted."""
    notes: Mapping[str, str] = {}
    """The note of each choice that needs a note of its own, in place of `note`."""
    choose: str = ""
    """The subject of the choice between its tables; empty without a choice."""
    chosen: str | None = None
    """The choice that is shown first."""
    filters: Sequence[Filter] = ()
    """The filters of the panel. Panels with filters of the same name share their setting."""
