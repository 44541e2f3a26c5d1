"""Tables for people. What callers chose of them steers no terminal, and columns stay columns."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["cut", "printable", "table", "write"]


def printable(text: str) -> str:
    """The text with a replacement character for whatever is no visible character: controls, marks of direction."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def cut(text: str, width: int) -> str:
    """At most that many columns of it (one or more), with `…` where something is missing."""
    if _width(text) <= width:
        return text
    left, taken = width - 1, 0
    for letter in text:
        left -= _columns(letter)
        if left < 0:
            break
        taken += 1
    return f"{text[:taken]}…"


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> Iterator[str]:
    """The lines of a table, its header among the rows; the columns `right` are numbers."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    numbers = frozenset(right)
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - _width(cell))
            cells.append(f"{blanks}{cell}" if index in numbers else f"{cell}{blanks}")
        yield "  ".join(cells).rstrip()


def write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()  # what comes next may take its time


def _width(text: str) -> int:
    """How many columns of a terminal it takes: most letters one, those of East Asia two, accents none."""
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
