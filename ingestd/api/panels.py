"""What a plugin shows on the operators' page: tables, in words that need no plugin to be drawn.

Text is shown as it is, never as HTML. A page is left open on a screen, so nothing of a person belongs on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Cell", "Column", "Filter", "Option", "Panel", "Table"]

Cell = str | int | float | None


class Column(Struct, frozen=True):
    title: str
    digits: int | None = None
    """Behind the point of its numbers; None where it holds text."""
    bar: bool = False
    """Whether the length of a bar shows its numbers too."""


class Table(Struct, frozen=True):
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    """Most important first. A page is no place for more than some dozens."""
    total: Sequence[Cell] | None = None
    choice: str | None = None
    """Of a panel's tables that have one, those of one choice are seen at a time."""


class Option(Struct, frozen=True):
    """What a filter can be set to: the value, and the text that people see."""

    value: str
    title: str


class Filter(Struct, frozen=True):
    """What a panel is asked for: `name` is the parameter in the page's address, and in the hook's `selection`."""

    name: str
    title: str
    options: Sequence[Option]
    """The first one is that of an address without the parameter. An empty value is left out of the address."""
    chosen: str | None
    """The option that the panel shows. None: the address asks for one that does not exist."""


class Panel(Struct, frozen=True):
    title: str
    tables: Sequence[Table]
    note: str = ""
    """A sentence below the title: since when, and what is not in it."""
    choose: str = ""
    """What the choice of its tables is about; empty where there is none."""
    chosen: str | None = None
    """The choice that is seen at first."""
    filters: Sequence[Filter] = ()
    """What the daemon makes the panel of. Panels whose filters have one name share it."""
