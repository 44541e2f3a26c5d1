"""Text for a terminal. Text that callers chose can neither control the terminal nor shift the columns of a table."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterator, Sequence

__all__ = ["aligned", "cut", "display_width", "json_escaped", "printable", "table"]


def printable(text: str) -> str:
    """The text with a replacement character for each invisible character, such as a control or a mark of direction."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def json_escaped(line: bytes) -> bytes:
    """A line of JSON with an escape for each invisible character. Its value stays the same.

    JSON requires escapes of the C0 controls only.
    """
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text).encode()


def display_width(text: str) -> int:
    """The number of terminal columns: one for most letters, two for wide letters of East Asia, none for accents."""
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns (one or more), with `…` in place of a missing end."""
    if display_width(text) <= width:
        return text
    left, taken = width - 1, 0
    for letter in text:
        left -= _columns(letter)
        if left < 0:
            break
        taken += 1
    return f"{text[:taken]}…"


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The lines of a table. A header is one of the rows. The columns in `right` are right-aligned, as numbers are."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield aligned(row, widths, right=right).rstrip()


def aligned(cells: Sequence[str], widths: Sequence[int], *, right: Collection[int] = ()) -> str:
    """One line of a table with columns of these widths. The columns in `right` are right-aligned, as numbers are."""
    shown = []
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        blanks = " " * (width - display_width(cell))
        shown.append(f"{blanks}{cell}" if index in right else f"{cell}{blanks}")
    return "  ".join(shown)
