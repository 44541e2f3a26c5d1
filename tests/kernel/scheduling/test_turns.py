"""The work in progress is bounded, and all work gets its turn: senders one after the other, each in its order."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ingestd.scheduling.room import Turns

MOST = 10


@given(st.lists(st.integers(1, 3 * MOST), max_size=30))
def test_work_in_progress_is_bounded_and_all_get_their_turn_in_order(sizes: list[int]) -> None:
    asyncio.run(take_turns(sizes))


async def take_turns(sizes: list[int]) -> None:
    turns = Turns(lambda: MOST)
    begun: list[int] = []

    async def work(index: int, size: int) -> None:
        await turns.begin_turn(size)
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
    first, second = (asyncio.create_task(turns.begin_turn(1)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    turns.end(MOST)
    await second
    assert turns.in_hand == 1


async def test_turns_beside_others_share_their_limit_but_none_waits_for_stuck_work_of_another() -> None:
    stuck = Turns(lambda: MOST)
    well = Turns(lambda: MOST, beside=stuck)
    assert stuck.begin_at_once(MOST)
    waits = asyncio.create_task(stuck.begin_turn(1))
    assert well.begin_at_once(2)
    assert not well.begin_at_once(2)  # only one piece of work, since the limit is used up
    first, second = (asyncio.create_task(well.begin_turn(size)) for size in (2, 1))
    await asyncio.sleep(0)
    well.end(2)
    await first
    assert not second.done()
    stuck.end(MOST)
    await asyncio.gather(second, waits)
    assert (well.in_hand, stuck.in_hand) == (3, 1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2 * MOST)), max_size=30))
def test_all_work_beside_other_work_gets_its_turn(sizes: list[tuple[int, int]]) -> None:
    asyncio.run(take_turns_beside(sizes))


async def take_turns_beside(sizes: list[tuple[int, int]]) -> None:
    first = Turns(lambda: MOST)
    turns = [first, Turns(lambda: MOST, beside=first), Turns(lambda: MOST, beside=first)]
    begun: list[list[int]] = [[], [], []]

    async def work(index: int, which: int, size: int) -> None:
        await turns[which].begin_turn(size)
        begun[which].append(index)
        await asyncio.sleep(0)
        turns[which].end(size)

    async with asyncio.timeout(10):
        await asyncio.gather(*(work(index, *each) for index, each in enumerate(sizes)))
    assert begun == [sorted(each) for each in begun]
    assert [each.in_hand for each in turns] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20))
def test_no_sender_waits_for_more_than_one_turn_of_each_other_sender(flood: list[tuple[int, int]]) -> None:
    """Keys take turns, and so do the addresses of a key. The order of one sender's work stays."""
    asyncio.run(take_turns_of(flood))


async def take_turns_of(flood: list[tuple[int, int]]) -> None:
    turns = Turns(lambda: 1)
    begun: list[tuple[int, int, int]] = []

    async def work(index: int, key: int, address: int) -> None:
        await turns.begin_turn(1, (key, address))
        begun.append((key, address, index))
        await asyncio.sleep(0)
        turns.end(1)

    assert turns.begin_at_once(1)
    tasks = [asyncio.create_task(work(index, *sender)) for index, sender in enumerate(flood)]
    tasks += [asyncio.create_task(work(20, 3, 0)), asyncio.create_task(work(21, 0, 3))]
    await asyncio.sleep(0)
    turns.end(1)
    await asyncio.gather(*tasks)
    assert begun.index((3, 0, 20)) <= 3  # at most one turn of each other key comes before
    of_key = [(address, index) for key, address, index in begun if key == 0]
    assert of_key.index((3, 21)) <= 3
    for sender in flood:
        mine = [index for *whose, index in begun if tuple(whose) == sender]
        assert mine == sorted(mine)


async def test_a_cancelled_waiter_of_one_sender_blocks_no_other_sender() -> None:
    turns = Turns(lambda: 1)
    assert turns.begin_at_once(1)
    first, second = (asyncio.create_task(turns.begin_turn(1, (key, None))) for key in range(2))
    await asyncio.sleep(0)
    first.cancel()
    turns.end(1)
    await second
    turns.end(1)
    assert turns.begin_at_once(1)
