"""Batches take turns."""

from __future__ import annotations

import asyncio

import pytest

from ingestd.api.errors import Unavailable
from ingestd.scheduling.demand import FEW, Demand
from ingestd.scheduling.room import Backpressure


class Batch:
    """Keeps its slot until the event `end` is set."""

    def __init__(self, backpressure: Backpressure, count: int) -> None:
        self.backpressure = backpressure
        self.begun = False
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._work(backpressure, count))

    async def _work(self, backpressure: Backpressure, count: int) -> None:
        backpressure.demand.want(count)
        try:
            async with backpressure.turn(count, (None, None)):
                self.begun = True
                await self.end.wait()
        finally:
            backpressure.demand.want(-count)


async def batches(backpressure: Backpressure, *counts: int) -> list[Batch]:
    made = [Batch(backpressure, count) for count in counts]
    await turns()
    return made


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def pass_on(made: list[Batch]) -> None:
    """End the oldest batch with a slot, and begin another batch."""
    ended = next(each for each in made if each.begun)
    made.remove(ended)
    ended.end.set()
    await ended.task
    made += await batches(ended.backpressure, 100)


async def in_hand_later(made: list[Batch]) -> int:
    """The number of batches with a slot after all present batches with a slot have ended."""
    for _ in range(60):
        await pass_on(made)
    return begun(made).count(True)


async def all_through(made: list[Batch]) -> None:
    for each in made:
        each.end.set()
    for each in made:
        await each.task


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def begun(made: list[Batch]) -> list[bool]:
    return [each.begun for each in made]


async def test_batches_take_turns_in_the_order_they_come_and_a_small_one_does_not_overtake() -> None:
    backpressure = Backpressure(100_000)
    made = await batches(backpressure, 1000, 1000, 1000, 1)
    assert begun(made) == [True, True, False, False]
    made[1].end.set()
    await turns()
    assert begun(made) == [True, True, True, False]
    made[0].end.set()
    await turns()
    assert begun(made) == [True] * 4
    for each in made:
        each.end.set()
        await each.task


async def test_a_cancelled_waiting_batch_passes_its_turn_to_the_next() -> None:
    backpressure = Backpressure(100_000)
    made = await batches(backpressure, 2000, 1000, 1000)
    assert begun(made) == [True, False, False]
    made[1].task.cancel()
    made[0].end.set()
    await turns()
    assert begun(made) == [True, False, True]
    made[2].end.set()
    await made[2].task
    (last,) = await batches(backpressure, 2000)
    assert last.begun
    last.end.set()
    await last.task


async def test_a_batch_cancelled_at_its_turn_passes_it_to_the_next() -> None:
    backpressure = Backpressure(100_000)
    async with backpressure.turn(2000, (None, None)):
        made = await batches(backpressure, 2000, 2000)
        assert begun(made) == [False, False]
    made[0].task.cancel()  # it has its turn, but its task has not run since
    await turns()
    assert begun(made) == [False, True]
    made[1].end.set()
    await made[1].task


async def test_endless_batches_leave_turns_to_others() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    made = await batches(backpressure, *[100] * 64)
    for _ in range(79):
        clock.now += 0.125
        await pass_on(made)
        assert begun(made).count(True) == 20  # a burst
    clock.now += 0.125
    for left in range(19, 1, -1):
        await pass_on(made)
        assert begun(made).count(True) == left
    for _ in range(1000):
        clock.now += 10
        await pass_on(made)
        assert begun(made).count(True) == 2
    await all_through(made)
    # Batches that come after a shorter pause than ten seconds continue the same flood.
    for pause in 0.01, 1, 9:
        clock.now += pause
        made = await batches(backpressure, *[100] * 64)
        assert begun(made).count(True) == 2
        clock.now += pause
        assert await in_hand_later(made) == 2
        await all_through(made)
    clock.now += 10
    made = await batches(backpressure, *[100] * 64)
    clock.now += 9.9
    assert await in_hand_later(made) == 20
    await all_through(made)


async def test_a_flood_on_few_connections_counts_despite_its_pauses_after_commits() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    for in_hand in [8] * 319 + [2] * 600:  # ten seconds with waiting batches, minus the seconds without any batch
        made = await batches(backpressure, *[100] * 8)
        assert begun(made).count(True) == in_hand
        clock.now += 0.0625
        await all_through(made)
        clock.now += 0.03125


async def test_a_task_that_gives_way_continues_right_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.scheduling.demand._LONGEST_REST", 3600)
    backpressure = Backpressure(100_000)
    few = await batches(backpressure, 100, 100)
    await backpressure.demand.give_way(0)  # two batches are no burst
    more = await batches(backpressure, 1)
    waiting = asyncio.create_task(backpressure.demand.give_way(0))
    await turns()
    assert not waiting.done()
    await all_through(more)
    await waiting
    await all_through(few)


async def test_an_endless_burst_does_not_stop_a_task_that_gives_way() -> None:
    backpressure = Backpressure(100_000)
    made = await batches(backpressure, 1000)
    await backpressure.demand.give_way(0)
    await all_through(made)


async def test_a_flood_gets_no_more_of_the_event_loop_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.scheduling.demand._LONGEST_REST", 3600)
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    made = await batches(backpressure, *[100] * 64)
    waiting = asyncio.create_task(backpressure.demand.give_way(0))
    clock.now += 10
    await pass_on(made)
    await waiting
    await backpressure.demand.give_way(0)
    await all_through(made)


async def test_a_few_batches_at_a_time_are_never_a_flood() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    made = await batches(backpressure, 100, 100)
    for _ in range(100):
        clock.now += 60
        await pass_on(made)
        assert begun(made) == [True, True]
    made += await batches(backpressure, *[100] * 62)
    clock.now += 9.9
    assert await in_hand_later(made) == 20
    clock.now += 0.2
    assert await in_hand_later(made) == 2
    await all_through(made)


async def test_a_slow_batch_does_not_make_the_next_one_a_flood() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    made = await batches(backpressure, 150)
    clock.now += 60
    made += await batches(backpressure, 100)
    assert begun(made) == [True, True]
    await all_through(made)


async def test_in_a_flood_a_batch_above_the_limit_runs_alone() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    made = await batches(backpressure, 1000, 1000)
    clock.now += 60
    for _ in range(3):
        made[0].end.set()
        await made.pop(0).task
        made += await batches(backpressure, 1000)
        assert begun(made) == [True, False]
    await all_through(made)


async def test_a_partition_that_hangs_leaves_room_for_the_others() -> None:
    hanging = Backpressure(100)
    well = Backpressure(beside=hanging)
    while True:
        try:
            hanging.acquire()
        except Unavailable:
            break
    assert hanging.waiting == 100
    for _ in range(50):
        well.acquire()  # its fair part
    with pytest.raises(Unavailable):
        well.acquire()
    assert well.waiting == 150
    for _ in range(100):
        hanging.release()
    for _ in range(50):
        well.acquire()
    with pytest.raises(Unavailable):
        well.acquire()


async def test_a_partition_that_refuses_events_leaves_the_others_alone() -> None:
    full = Backpressure(100)
    well = Backpressure(beside=full)
    full.refuse("The journal is full.")
    well.check()
    with pytest.raises(Unavailable, match="The journal is full"):
        full.check()
    full.refuse(None)
    full.check()


async def test_batches_of_a_partition_that_hangs_hold_up_no_batch_of_another() -> None:
    hanging = Backpressure(100_000)
    well = Backpressure(beside=hanging)
    stuck = await batches(hanging, 1500, 1500)
    passing = await batches(well, 1500)
    assert begun([*stuck, *passing]) == [True, False, True]
    await all_through([*passing, *stuck])


async def test_beside_single_events_few_events_of_batches_are_in_progress() -> None:
    clock = Clock()
    backpressure = Backpressure(100_000, demand=Demand(clock))
    backpressure.demand.single_at = clock.now
    made = await batches(backpressure, *[FEW] * 3)
    assert begun(made) == [True, True, False]
    clock.now += 1
    made[0].end.set()
    made += await batches(backpressure, *[FEW] * 10)
    assert begun(made) == [True] * 13
    await all_through(made)


async def test_beside_single_events_long_work_rests_for_twice_as_long_as_it_works() -> None:
    clock = Clock()
    backpressure = Backpressure(100, demand=Demand(clock))
    backpressure.demand.single_at = clock.now
    steps = await backpressure.begin_piece((None, None))
    following = asyncio.create_task(backpressure.begin_piece((None, None)))
    clock.now += 0.0004
    assert not steps.is_over()
    steps.end()  # so short a rest is owed
    second = await following
    following = asyncio.create_task(backpressure.begin_piece((None, None)))
    clock.now += 0.002
    assert second.is_over()
    begun_at = asyncio.get_running_loop().time()
    second.end()
    second.end()
    await following
    assert asyncio.get_running_loop().time() - begun_at >= 2 * 0.0024 - 0.001  # a timer may be a little early


async def test_without_single_events_long_work_does_not_rest() -> None:
    clock = Clock()
    backpressure = Backpressure(100, demand=Demand(clock))
    several = [await backpressure.begin_piece((None, None)) for _ in range(10)]
    clock.now += 0.004
    assert not several[0].is_over()
    clock.now += 0.002
    assert several[0].is_over()
    for each in several:
        each.end()
