"""The sample of live events: every item has the same chance, however the items come."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.console.live.sample import Sample


@pytest.mark.parametrize("group", [1, 7, 100, 1000])
def test_each_item_has_the_same_chance_in_requests_of_any_size(group: int) -> None:
    tenths: Counter[int] = Counter()
    for _ in range(400):
        sample = Sample[int](20.0, 10)
        for first in range(0, 1000, group):
            here = range(first, min(first + group, 1000))
            for drawn in sample.draw(len(here)):
                sample.keep(here[drawn])
        kept = sample.take(1.0)
        assert len({*kept}) == 10
        tenths.update(item // 100 for item in kept)
    # 4,000 items in ten tenths of 400 each. The standard deviation is 19.
    assert all(280 < tenths[tenth] < 520 for tenth in range(10)), tenths


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 3)), max_size=12))
def test_all_items_are_kept_while_there_is_room_and_no_more(turns: list[tuple[int, float]]) -> None:
    sample, allowance, number = Sample[int](20.0, 100), 100.0, 0
    for count, seconds in turns:
        items = range(number, number + count)
        number += count
        for drawn in sample.draw(count):
            sample.keep(items[drawn])
        kept = sample.take(seconds)
        assert len(kept) == min(count, int(allowance))
        assert {*kept} <= {*items}
        allowance = min(100.0, allowance - len(kept) + 20.0 * seconds)
