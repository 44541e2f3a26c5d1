"""Touchpoints are arrivals: a run of one campaign in a session is one, whenever and however its events come."""

from __future__ import annotations

import asyncio
from itertools import groupby, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from tests.support.attribution import Shop, agrees, attributing
from tests.support.attribution_reference import DAY, HOUR, Reference, Rules
from tests.support.journals import append

MINUTE = 60_000
MAIL = {"source": "newsletter", "medium": "email"}
AD = {"source": "google", "medium": "cpc"}


class Step(NamedTuple):
    session: int
    campaign: str | None
    """The campaign of a landing. A page view has that of the visit."""
    held: int
    """The number of later events that come before this one, because of a late script or an outage."""


def steps(campaigns: st.SearchStrategy[str], held: st.SearchStrategy[int]) -> st.SearchStrategy[list[Step]]:
    step = st.builds(Step, st.sampled_from([1, 1, 1, 2]), st.none() | st.none() | campaigns, held)
    return st.lists(step, min_size=1, max_size=25)


async def attribution_of(records: list[Record], rules: Rules | None = None) -> dict[str, Any]:
    """The attribution of the last record. The reference must agree."""
    rules = rules or Rules(model="linear")
    with TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules) as attribution:
            await append(attribution.backend, records)
            await attribution.work_off(repeat(3), records[-1].at)
            derived = await attribution.derived()
    agrees(derived, Reference(rules, [record.decode() for record in records]))
    body: dict[str, Any] = msgspec.json.decode(derived[-1])
    return body


def arrivals_are_the_touchpoints(happened: list[Step], *, in_order: bool) -> None:
    shop, visits, events = Shop(), dict[int, str](), list[tuple[str, int, Record]]()
    for number, step in enumerate(happened):
        visits[step.session] = step.campaign or visits.get(step.session, "first")
        campaign = {"source": visits[step.session]}
        age = (len(happened) - number) * MINUTE
        event = shop.event("Page View", "a", age=age, context={"campaign": campaign}, session=step.session)
        events.append((visits[step.session], step.session, event))
    expected = {
        next(run)[2].decode()["id"]
        for session in visits
        for _, run in groupby((each for each in events if each[1] == session), key=lambda each: each[0])
    }
    came = (
        events
        if in_order
        else [each for _, each in sorted(enumerate(events), key=lambda each: each[0] + happened[each[0]].held + 0.5)]
    )
    body = asyncio.run(attribution_of([*(event for _, _, event in came), shop.order("a")]))
    ids = [record.decode()["id"] for _, _, record in events]
    assert [each["eventId"] for each in body["touchpoints"]] == [each for each in ids if each in expected]
    assert {share["weight"] for share in body["credits"]["linear"]} == {1 / len(expected)}


@given(happened=steps(st.sampled_from("abc"), st.just(0)))
def test_touchpoints_are_the_arrivals(happened: list[Step]) -> None:
    """An outage keeps the order of the events, and changes only when they come."""
    arrivals_are_the_touchpoints(happened, in_order=True)


@given(happened=steps(st.uuids().map(str), st.integers(0, 8)))
def test_touchpoints_are_the_arrivals_if_events_come_late(happened: list[Step]) -> None:
    """Here no campaign comes back in the same session."""
    arrivals_are_the_touchpoints(happened, in_order=False)


@pytest.mark.parametrize("views", [9, 300])
async def test_page_views_of_a_visit_weigh_nothing_and_displace_nothing(views: int) -> None:
    shop = Shop()
    visits = [shop.event("Page View", "a", context={"campaign": AD}, session=1) for _ in range(views)]
    visits += [shop.event("Page View", "a", context={"campaign": MAIL}, session=2)]
    body = await attribution_of([shop.touch("a", "older"), shop.touch("a", "old"), *visits, shop.order("a")])
    ids = [each["eventId"] for each in body["touchpoints"]]
    assert [each["source"] for each in body["touchpoints"]] == ["older", "old", "google", "newsletter"]
    assert ids[2] == visits[0].decode()["id"]
    assert [each["weight"] for each in body["credits"]["linear"]] == [0.25] * 4


@pytest.mark.parametrize(
    ("events", "touchpoints"),
    [
        # What an event lacks does not differ.
        ([(AD, "d-1"), (AD, None), ({}, "d-1")], [0]),
        ([(AD, None), (AD, "d-1")], [0, 1]),
        ([({}, "d-1"), (AD, "d-1"), (AD, None)], [0, 1]),
        ([({}, "d-1"), ({}, "d-2"), ({}, "d-1")], [0, 1, 2]),
        # All fields of the campaign count.
        ([(AD, None), ({**AD, "term": "boots"}, None), ({**AD, "term": "boots"}, None), (AD, None)], [0, 1, 3]),
        # An excluded campaign is no touchpoint, so it ends no run.
        ([(AD, None), ({"source": "paypal"}, None), (AD, None)], [0]),
        ([({"source": "paypal"}, None), (AD, None), ({"source": "paypal"}, None)], [1]),
    ],
)
async def test_a_run_is_one_touchpoint(events: list[tuple[dict[str, str], str | None]], touchpoints: list[int]) -> None:
    shop = Shop()
    records = [
        shop.event("Page View", "a", context={"campaign": campaign}, dispatch=dispatch, session=1)
        for campaign, dispatch in events
    ]
    body = await attribution_of([*records, shop.order("a")], Rules(exclude_sources=("paypal",)))
    expected = [records[index].decode()["id"] for index in touchpoints]
    assert [each["eventId"] for each in body["touchpoints"]] == expected


async def test_runs_of_other_sessions_and_visitors_are_separate() -> None:
    shop = Shop()
    records = [
        shop.touch("a", "mail", session=1),
        shop.touch("a", "mail", session=2),
        shop.touch("b", "mail", session=1),
    ]
    records += [shop.identify(visitor, "u") for visitor in ("a", "b")]
    records += [
        shop.touch("a", "ad", session=2),
        shop.touch("a", "mail", session=1),
        shop.touch("b", "mail", session=1),
    ]
    body = await attribution_of([*records, shop.order("a")])
    found = [(each["anonymousId"], each["source"]) for each in body["touchpoints"]]
    assert found == [("a", "mail"), ("a", "mail"), ("b", "mail"), ("a", "ad")]


@pytest.mark.parametrize(
    ("age", "touchpoints"), [(25 * HOUR, [0]), (7 * DAY, [0]), (7 * DAY + 1, []), (14 * DAY, []), (14 * DAY + 1, [1])]
)
@pytest.mark.parametrize("in_order", [True, False])
async def test_a_run_lasts_as_long_as_it_is_remembered(age: int, touchpoints: list[int], in_order: bool) -> None:
    """The order is direct if the run began before the window, although its session goes on."""
    shop = Shop()
    records = [shop.touch("a", "mail", age=age, session=1), shop.touch("a", "mail", age=HOUR, session=1)]
    body = await attribution_of([*(records if in_order else records[::-1]), shop.order("a")])
    expected = [records[index].decode()["id"] for index in touchpoints]
    assert [each["eventId"] for each in body["touchpoints"]] == expected


@given(steps=st.lists(st.tuples(st.sampled_from("aab"), st.sampled_from([1, 24, 60])), min_size=1, max_size=12))
def test_a_session_of_weeks_has_an_arrival_for_each_change(steps: list[tuple[str, int]]) -> None:
    """Each campaign comes some hours after the last one. The order follows the last one at once."""
    shop, events = Shop(), list[tuple[str, Record]]()
    arrivals: list[tuple[str, int, str]] = []
    for campaign, hours in steps:
        shop.now += hours * HOUR
        events.append((campaign, shop.touch("a", campaign, session=1)))
        is_known = arrivals and arrivals[-1][0] == campaign and arrivals[-1][1] >= shop.now - 14 * DAY
        if not is_known:
            arrivals.append((campaign, shop.now, events[-1][1].decode()["id"]))
    body = asyncio.run(attribution_of([*(event for _, event in events), shop.order("a")]))
    expected = [event_id for _, at, event_id in arrivals if at >= shop.now - 7 * DAY]
    assert [each["eventId"] for each in body["touchpoints"]] == expected


async def test_a_run_is_dated_by_its_first_event_although_that_came_last() -> None:
    shop = Shop()
    shop.now += HOUR
    late, first, other = (shop.touch("a", *each, session=1) for each in (["mail"], ["mail"], ["ad"]))
    first = shop.touch("a", "mail", age=5 * MINUTE, session=1)
    between = shop.touch("a", "ad", age=2 * MINUTE, session=1)
    body = await attribution_of([late, other, between, first, shop.order("a")])
    found = [each["eventId"] for each in body["touchpoints"]]
    assert found == [each.decode()["id"] for each in (first, between, late, other)]
