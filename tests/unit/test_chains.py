"""The order within a batch: dependent events wait for each other, all others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Endpoint, Event
from ingestd.pipeline.chains import UnderWay, beside_each_other, chains, ties


def event(visitor: str | None, message_id: str | None, user_id: str | None, *, is_event: bool) -> Event:
    """An event. Without a `visitor` it has an unusable anonymousId."""
    return Event(
        id="", type="event" if is_event else "identify", tenant="shop", endpoint=Endpoint.TRACK, received_at=0,
        timestamp=0, key=None, data={}, traits={}, anonymous_id=visitor or "undefined", user_id=user_id,
        session_id=None, session_is_new=False, dispatch_id=None, message_id=message_id, context={}, extra={},
        has_visitor=visitor is not None,
    )  # fmt: skip


# Visitors, messages and users have the same names. Equal names of different kinds are no dependency.
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


@given(st.lists(events, max_size=30))
def test_dependent_events_and_no_others_are_in_one_chain(events: list[Event]) -> None:
    expected = [{place} for place in range(len(events))]
    for place, one in enumerate(events):
        for other in range(place):
            if tied(one, events[other]):
                joined = expected[place] | expected[other]
                for each in joined:
                    expected[each] = joined
    found = chains(events)
    assert found == [sorted(chain) for chain in {min(chain): chain for chain in expected}.values()]
    assert [chain[0] for chain in found] == sorted(chain[0] for chain in found)


@given(st.lists(events, max_size=12), st.data())
def test_an_event_waits_for_the_events_in_flight_that_it_depends_on(events: list[Event], data: st.DataObject) -> None:
    async def holds() -> None:
        under_way = UnderWay()
        awaited: dict[int, list[asyncio.Future[None]]] = {}
        for place, each in enumerate(events):
            expected = any(tied(each, events[other]) for other in awaited)
            awaited[place] = under_way.begin(place, ties(each))
            assert bool(awaited[place]) == expected
            ready = [other for other, before in awaited.items() if all(end.done() for end in before)]
            for other in ready:
                if data.draw(st.booleans()):
                    del awaited[other]
                    under_way.end(other, ties(events[other]))

    asyncio.run(holds())


async def test_other_events_continue_while_one_waits() -> None:
    go = asyncio.Event()
    seen: list[Any] = []

    async def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            seen.append(number)
            if number == 99:
                go.set()
            elif number % 2 == 0:
                await go.wait()

    async with asyncio.timeout(10):
        await beside_each_other(work, range(100))
    assert seen == [*range(100)]


async def test_work_that_never_waits_is_done_in_order_without_tasks() -> None:
    seen: list[int] = []

    async def work(numbers: Iterator[int]) -> None:
        seen.extend(numbers)

    before = len(asyncio.all_tasks())
    await beside_each_other(work, range(100))
    assert seen == [*range(100)]
    assert len(asyncio.all_tasks()) == before
    await beside_each_other(work, [])
