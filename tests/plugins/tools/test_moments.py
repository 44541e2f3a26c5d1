"""Times and positions in the form that operators give them, and the first record since a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ingestd.api.journal import JournalStats, RecordInfo
from ingestd.plugins.tools.sinks.moments import first_since, parse_point


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21T04:05:06.789Z", 1795233906789),
        ("2026-11-21T05:05:06.789+01:00", 1795233906789),
        ("2026-11-21T04:05:06.789", 1795233906789),
        ("2026-11-21 04:05", 1795233900000),
        ("2026-11-21", 1795219200000),
    ],
)
def test_a_time_is_iso_8601_and_in_utc_by_default(text: str, at: int) -> None:
    assert parse_point(text) == (None, at)


def test_digits_are_a_position() -> None:
    assert parse_point("20261121").position == 20261121


class _Outlines:
    def __init__(self, first: int, ats: Sequence[int]) -> None:
        self.extent = JournalStats(first, first + len(ats) - 1, len(ats), 0, ats[0] if ats else None)
        self._ats = ats

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        start = max(0, after + 1 - self.extent.first)
        return [
            RecordInfo(self.extent.first + start + i, at, 1) for i, at in enumerate(self._ats[start : start + limit])
        ]


@pytest.mark.parametrize("ats", [[], [5], [5, 5, 5], [1, 3, 3, 8, 9], [*range(0, 200, 3)]])
@pytest.mark.parametrize("first", [1, 40])
async def test_the_first_record_since_a_time_is_found(ats: list[int], first: int) -> None:
    journal: Any = _Outlines(first, ats)
    for at in range(-1, 205):
        expected = next((first + index for index, each in enumerate(ats) if each >= at), first + len(ats))
        assert await first_since(journal, journal.extent, at) == expected
