"""Pages of the journal: of one piece or of several, and with records that were replaced.

`read_page` reads any page in one step of a script. `read_on` takes a tenth of Redis' time: it reads on in the piece in
which an earlier page ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ingestd.api.events import Record

from .scripts import PAGE

__all__ = ["Page", "decode_page", "decode_page_of_piece", "read_on", "read_page"]

_STEP = 2  # records: Redis looks at the size after so many
_UNLIMITED = 1 << 53  # bytes


class Page(NamedTuple):
    records: Sequence[Record]
    piece: int
    """The number of the piece in which the page ends; 0 if unknown."""
    large: int
    """The position of the newest large record of the journal."""


def read_page(prefix: str, after: int, limit: int, size: int | None) -> tuple[Any, ...]:
    """The command for at most `limit` records after a position; page.lua has the form of its answer.

    With a `size`, the page ends once its bodies have so many bytes, or with the record after that.
    """
    if size is None:
        return "EVAL", PAGE, 1, prefix, after, limit, _UNLIMITED, limit
    return "EVAL", PAGE, 1, prefix, after, limit, size, _STEP


def decode_page(answer: Sequence[Any]) -> Page:
    large, piece, *found = answer
    return Page([Record(type_.decode(), at, body, position) for position, type_, at, body in found], piece, large)


def read_on(prefix: str, piece: int, after: int, limit: int) -> tuple[tuple[Any, ...], ...]:
    """The commands for a page that follows a record of that piece."""
    key = f"{prefix}journal:{piece}"
    return (
        ("HMGET", f"{prefix}meta", "large", "piece"),
        ("XRANGE", key, f"{after + 1}-0", "+", "COUNT", limit),
        ("ZCOUNT", f"{key}:replaced-at", after + 1, "+inf"),
    )


def decode_page_of_piece(answers: Sequence[Any], piece: int, limit: int) -> Page | None:
    """None if the page goes on in the next piece, or has records that were replaced."""
    (large, newest), entries, replaced = answers
    if replaced or (len(entries) < limit and int(newest or 0) != piece):
        return None
    records = [
        Record(type_.decode(), int(at), body, int(name.partition(b"-")[0]))
        for name, (_, type_, _, at, _, body) in entries
    ]
    return Page(records, piece, int(large or 0))
