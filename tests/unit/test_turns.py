"""The work in progress is bounded, and all work gets its turn in the order of its arrival."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ingestd.pipeline.turns import Turns

MOST = 10


@given(st.lists(st.integers(1, 3 * MOST), max_size=30))
def test_work_in_progress_is_bounded_and_all_get_their_turn_in_order(sizes: list[int]) -> None:
    asyncio.run(take_turns(sizes))


async def take_turns(sizes: list[int]) -> None:
    turns = Turns(lambda: MOST)
    begun: list[int] = []

    async def work(index: int, size: int) -> None:
        await turns.begin(size)
        begun.append(index)
        assert turns.in_hand <= max(MOST, size)
        await asyncio.sleep(0)
        turns.end(size)

    await asyncio.gather(*(work(index, size) for index, size in enumerate(sizes)))
    assert begun == sorted(begun)
    assert turns.in_hand == 0


async def test_a_cancelled_waiter_blocks_no_other() -> None:
    turns = Turns(lambda: MOST)
    assert turns.begin_at_once(MOST)
    first, second = (asyncio.create_task(turns.begin(1)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    turns.end(MOST)
    await second
    assert turns.in_hand == 1
