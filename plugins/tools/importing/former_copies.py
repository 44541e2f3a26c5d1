"""The copies of records that an import has stored once more, with state."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from ingestd.api.events import Record
from ingestd.api.imported import completed
from ingestd.api.journal import Journal

__all__ = ["FormerCopies"]


class FormerCopies:
    """Marks former copies in the journal, so that exports have each record once, as it was stored last.

    An import that ends before that leaves both copies, which the next one marks.
    """

    def __init__(self) -> None:
        self._positions: dict[Journal, list[int]] = {}

    def add(self, journal: Journal, position: int) -> None:
        self._positions.setdefault(journal, []).append(position)

    async def mark(self) -> None:
        """Mark the copies that were added. Raises `Unavailable`."""
        for journal, positions in self._positions.items():
            records = [each for run in _runs(sorted(positions)) for each in await _read(journal, *run)]
            await journal.replace([(each, msgspec.json.encode(completed(each.decode()))) for each in records])
        self._positions.clear()


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each run of consecutive positions, as its first and last one."""
    first = before = positions[0]
    for position in [*positions[1:], sys.maxsize]:
        if position != before + 1:
            yield first, before
            first = position
        before = position


async def _read(journal: Journal, first: int, last: int) -> list[Record]:
    """The records between these positions, as far as retention has left them."""
    found: list[Record] = []
    after = first - 1
    while after < last and (records := await journal.read(after, last - after)):
        found += [record for record in records if record.position <= last]
        after = records[-1].position
    return found
