"""A sink that several consumers share: opened once, closed by the last, never called twice at once, in fair turns."""

from __future__ import annotations

import asyncio

import pytest

from ingestd.api.errors import SinkRetry
from ingestd.api.sink import Sink
from ingestd.delivery.shared_sink import SharedSink


class Door(Sink):
    """Notes its calls. `failures` are raised by the next calls of `open`."""

    def __init__(self) -> None:
        super().__init__("door", self.Options())
        self.calls: list[str] = []
        self.failures: list[Exception] = []

    async def open(self) -> None:
        self.calls.append("open")
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()

    async def check(self) -> None:
        self.calls.append("check")

    async def close(self) -> None:
        self.calls.append("close")


async def test_it_is_opened_by_the_first_user_and_closed_by_the_last() -> None:
    door = Door()
    shared = SharedSink(door, 1.0)
    await asyncio.gather(shared.open("a"), shared.open("b"))
    await shared.open("c")
    await shared.close("a")
    await shared.close("b")
    assert door.calls == ["open"]
    await shared.close("c")
    await shared.close("c")
    assert door.calls == ["open", "close"]
    await shared.open("a")
    assert door.calls == ["open", "close", "open"]


async def test_a_failed_opening_is_made_again_by_whoever_asks_next() -> None:
    door = Door()
    shared = SharedSink(door, 1.0)
    door.failures = [SinkRetry("not yet")]
    with pytest.raises(SinkRetry):
        await shared.open("a")
    await shared.open("b")
    await shared.open("a")
    assert door.calls == ["open", "open"]


async def test_users_get_the_turn_in_the_order_in_which_they_asked() -> None:
    shared, order = SharedSink(Door(), 1.0), []

    async def call(user: int) -> None:
        async with shared.turn:
            order.append(user)
            await asyncio.sleep(0)

    async with shared.turn:
        calls = [asyncio.create_task(call(user)) for user in range(5)]
        await asyncio.sleep(0)
    calls += [asyncio.create_task(call(5))]
    await asyncio.gather(*calls)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_the_time_limit_of_a_call_begins_with_its_turn() -> None:
    door = Door()
    shared = SharedSink(door, 0.05)
    async with shared.turn:
        checking = asyncio.create_task(shared.check())
        await asyncio.sleep(0.1)
        assert not checking.done()
    await checking
    assert door.calls == ["check"]


async def test_the_last_user_closes_a_sink_whose_call_is_stuck() -> None:
    door = Door()
    shared = SharedSink(door, 1.0)
    await shared.open("a")
    async with shared.turn:  # as a call that resists its cancellation has it
        await shared.close("a")
    assert door.calls == ["open", "close"]
