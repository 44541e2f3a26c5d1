"""What a plugin shows on the operators' page: tables, in words that need no plugin to be drawn.

Text is shown as it is, never as HTML. A page is left open on a screen, so nothing of a person belongs on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Cell", "Column", "Panel", "Table"]

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


class Panel(Struct, frozen=True):
    title: str
    tables: Sequence[Table]
    note: str = ""
    """A sentence below the title: since when, and what is not in it."""
    choose: str = ""
    """What the choice of its tables is about; empty where there is none."""
    chosen: str | None = None
    """The choice that is seen at first."""
