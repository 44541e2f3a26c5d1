"""The order of the events of a request: dependent events wait for each other, all others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Endpoint, Event
from ingestd.pipeline.event_order import EventOrder


def event(visitor: str | None, message_id: str | None, user_id: str | None, *, is_event: bool) -> Event:
    """Without a visitor: with an anonymousId that names nobody."""
    return Event(
        id="", type="event" if is_event else "identify", tenant="shop", endpoint=Endpoint.TRACK, received_at=0,
        timestamp=0, key=None, data={}, traits={}, anonymous_id=visitor or "undefined", user_id=user_id,
        session_id=None, session_is_new=False, dispatch_id=None, message_id=message_id, context={}, extra={},
        has_visitor=visitor is not None,
    )  # fmt: skip


# One name is a visitor, a message and a user: that must not tie them together.
names = st.sampled_from("abcdefgh")
events = st.builds(event, st.none() | names, st.none() | names, st.none() | names, is_event=st.booleans())


def tied(one: Event, other: Event) -> bool:
    both_have_visitors = one.has_visitor and other.has_visitor
    both_link = both_have_visitors and one.type == other.type == "identify"
    return (
        (both_have_visitors and one.anonymous_id == other.anonymous_id)
        or (one.message_id is not None and one.message_id == other.message_id)
        or (both_link and one.user_id is not None and one.user_id == other.user_id)
    )


@given(st.lists(events, max_size=12), st.data())
def test_an_event_waits_for_earlier_ones_with_a_common_ordering_key_only(
    events: list[Event], data: st.DataObject
) -> None:
    """Each event waits for up to three turns of the event loop."""
    waits = data.draw(st.lists(st.integers(0, 3), min_size=len(events), max_size=len(events)))
    begun: list[int] = []
    ended: list[int] = []

    async def handle(number: int, event: Event) -> None:
        assert event is events[number]
        dependent = [other for other in range(number) if tied(event, events[other])]
        assert {*dependent} <= {*ended}
        begun.append(number)
        for _ in range(waits[number]):
            await asyncio.sleep(0)
        ended.append(number)

    asyncio.run(EventOrder(events, handle).run())
    assert sorted(begun) == sorted(ended) == [*range(len(events))]


def visitors(count: int) -> list[Event | None]:
    return [event(f"{number}", None, None, is_event=True) for number in range(count)]


async def test_other_events_continue_while_one_waits() -> None:
    go = asyncio.Event()
    seen: list[int] = []

    async def handle(number: int, event: Event) -> None:
        seen.append(number)
        if number == 99:
            go.set()
        elif number % 2 == 0:
            await go.wait()

    async with asyncio.timeout(10):
        await EventOrder(visitors(100), handle).run()
    assert seen == [*range(100)]


async def test_events_that_never_wait_are_handled_in_order_without_tasks() -> None:
    tasks = set[int]()
    seen: list[int] = []

    async def handle(number: int, event: Event) -> None:
        tasks.add(len(asyncio.all_tasks()))
        seen.append(number)

    await EventOrder([None, *visitors(100), None], handle).run()
    assert seen == [*range(100)]
    assert len(tasks) == 1
    await EventOrder([], handle).run()


async def test_a_single_event_is_handled_whatever_holds_it() -> None:
    async def handle(number: int, event: Event) -> None:
        seen.append(event)

    [single] = visitors(1)
    for holder in ((single,), [single], iter([single]), (None, single)):
        seen: list[Event] = []
        await EventOrder(holder, handle).run()
        assert seen == [single]
    seen = []
    await EventOrder((None,), handle).run()
    assert seen == []


async def test_an_event_is_read_when_all_earlier_ones_have_ended_or_wait() -> None:
    ended: list[int] = []

    def read() -> Iterator[Event | None]:
        for number, each in enumerate(visitors(10)):
            assert len(ended) == number
            yield each

    async def handle(number: int, event: Event) -> None:
        ended.append(number)

    await EventOrder(read(), handle).run()


async def test_a_timeout_of_an_event_that_waits_ends_that_event_alone() -> None:
    ended: list[int] = []

    async def handle(number: int, event: Event) -> None:
        if number == 1:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                ended.append(-1)
        await asyncio.sleep(0)
        ended.append(number)

    async with asyncio.timeout(10):
        await EventOrder(visitors(5), handle).run()
    assert sorted(ended) == [-1, 0, 1, 2, 3, 4]


async def test_all_events_begin_in_the_turn_in_which_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.scheduling.demand._STEP", 60.0)  # a busy machine would need another turn
    turn = asyncio.Event()
    begun: list[int] = []

    async def handle(number: int, event: Event) -> None:
        assert not turn.is_set()
        begun.append(number)
        if number % 3 == 0:
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()

    await EventOrder(visitors(30), handle).run()
    assert begun == [*range(30)]


async def test_an_event_stays_in_its_task_and_its_context_when_it_waits() -> None:
    marked: ContextVar[int] = ContextVar("marked")

    async def handle(number: int, event: Event) -> None:
        task = asyncio.current_task()
        marked.set(number)
        await asyncio.sleep(0)
        assert asyncio.current_task() is task
        assert marked.get() == number

    await EventOrder(visitors(30), handle).run()
