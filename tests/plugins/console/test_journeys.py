"""Journeys on the operators' page: the search of the journal, its limits, names for hidden ids, and turns."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api import hookimpl
from ingestd.api.backend import Backend
from ingestd.api.errors import BadRequest, Forbidden, Unavailable
from ingestd.api.events import Record
from ingestd.api.journeys import (
    JourneyExplanation,
    JourneyFact,
    JourneyLead,
    JourneyMoment,
    JourneyPart,
    JourneyQuery,
    JourneyRecords,
)
from ingestd.config import ShowData
from ingestd.plugins.console.disclosure import Disclosure, Names
from ingestd.plugins.console.journeys import JourneyReader, SearchLimits, SearchQueue
from ingestd.plugins.console.journeys.people import PersonRecords
from ingestd.plugins.console.journeys.search import JournalSearch
from ingestd.storage.placements import Placements
from ingestd.support.unusable_ids import UnusableIds
from tests.support.attribution import Shop
from tests.support.backends import sqlite_backend
from tests.support.hooks import hooks_of

VISITORS = ["v0", "v1", "v2", 'v"\\']
USERS = [None, "u0", "u1"]
STEPS = st.lists(
    st.tuples(st.sampled_from(VISITORS), st.sampled_from(USERS), st.sampled_from(["event", "identify"])), max_size=60
)


@asynccontextmanager
async def journal_of(records: Sequence[Record]) -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_backend(Path(folder)) as backend:
            if records:
                await backend.journal.commit(records, backend.store.begin(records[-1].at))
            yield backend


def reader(
    backend: Backend, *, show_data: ShowData = "all", limits: SearchLimits | None = None, **plugins: object
) -> Any:
    hooks, disclosure = hooks_of(**plugins), Disclosure(show_data, [], [])
    made = JourneyReader(
        lambda: hooks, backend.partitions, Placements(1), UnusableIds(), disclosure=lambda: disclosure,
        limits=limits or SearchLimits(),
    )  # fmt: skip

    async def read(before: int | None = None, **query: str) -> Any:
        return json.loads(await made.render(JourneyQuery(**query), before))

    return read


def made(steps: Sequence[tuple[str, str | None, str]]) -> list[Record]:
    shop = Shop()
    return [
        shop.identify(visitor, user, linked=user is not None)
        if kind == "identify"
        else shop.event("Page View", visitor, user=user)
        for visitor, user, kind in steps
    ]


def belonging(steps: Sequence[tuple[str, str | None, str]], wanted: str) -> set[int]:
    """The positions of a user's records, by their definition: named by the user, or unnamed and before a link."""
    known: set[str] = set()
    found = set()
    for position in range(len(steps), 0, -1):
        visitor, user, kind = steps[position - 1]
        if user == wanted and kind == "identify":
            known.add(visitor)
        if user == wanted or (user is None and visitor in known):
            found.add(position)
    return found


@given(STEPS, st.integers(1, 7))
def test_a_search_finds_a_user_with_visitors_linked_later(steps: list[tuple[str, str | None, str]], first: int) -> None:
    async def search() -> set[int]:
        async with journal_of(made(steps)) as backend:
            search = JournalSearch(backend.journal, SearchLimits())
            matcher = PersonRecords([], "u1", "shop", UnusableIds())
            assert await search.backward(len(steps) + 1, first, matcher) == min(first, len(steps) + 1)
            return {*search.found}

    found = asyncio.run(search())
    least = {each for each in belonging(steps, "u1") if each >= first}
    assert least <= found
    for position in found - least:  # records after the link, in the page where the search learned of it
        visitor, user, _ = steps[position - 1]
        assert user is None
        assert (visitor, "u1", "identify") in steps


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (SearchLimits(records=100), "100 records"),
        (SearchLimits(bytes=1 << 20), "1 MiB"),
        (SearchLimits(seconds=0), "0 seconds"),
        (SearchLimits(found=10), "records of this journey"),
        (SearchLimits(found_bytes=100), "records of this journey"),
    ],
)
async def test_a_limit_ends_the_search_and_the_next_request_goes_on(limits: SearchLimits, told: str) -> None:
    shop = Shop()
    records = [shop.event("Page View", "v", {"text": "x" * 3000}) for _ in range(600)]
    async with journal_of(records) as backend:
        page = await reader(backend, limits=limits)(visitor="v", tenant="shop")
        assert told in page["searched"]["limit"]
        assert page["searched"]["records"] < 600
        before, seen = page["searched"]["next"], page["searched"]["records"]
        assert before == 601 - seen
        rest = await reader(backend)(visitor="v", tenant="shop", before=before)
        assert rest["searched"]["limit"] is None
        assert rest["searched"]["next"] is None
        assert seen + rest["searched"]["records"] == 600


async def test_the_search_for_an_order_that_no_plugin_knows_goes_on_too() -> None:
    shop = Shop()
    records = [shop.order("v", "o-7"), *(shop.event("Page View", "w") for _ in range(400))]
    async with journal_of(records) as backend:
        page = await reader(backend, limits=SearchLimits(records=200))(order="o-7", tenant="shop")
        assert page["sessions"] == []
        while page["searched"]["next"] is not None:
            before = page["searched"]["next"]
            page = await reader(backend, limits=SearchLimits(records=200))(order="o-7", tenant="shop", before=before)
        (session,) = page["sessions"]
        assert [each["key"] for each in session["events"]] == ["Order Completed"]


async def test_a_page_of_large_records_is_read_in_parts_and_counted() -> None:
    shop = Shop()
    records = [shop.event("Page View", "v") for _ in range(300)]
    records += [shop.event("Page View", "v", {"text": "x" * 500_000}) for _ in range(20)]
    records += [shop.event("Page View", "v") for _ in range(300)]
    async with journal_of(records) as backend:
        search = JournalSearch(backend.journal, SearchLimits(bytes=4 << 20))
        await search.backward(len(records) + 1, 1, PersonRecords([("shop", "v")], None, "shop", UnusableIds()))
        assert search.limit == "4 MiB"
        assert search.bytes < 7 << 20  # one read of the journal has two megabytes


async def test_records_that_the_journal_has_removed_are_no_records() -> None:
    shop = Shop()
    async with journal_of([shop.event("Page View", "v") for _ in range(50)]) as backend:
        await backend.journal.trim(30, 100)
        page = await reader(backend)(visitor="v", tenant="shop")
        assert (page["searched"]["records"], page["searched"]["next"]) == (20, None)
        assert sum(len(each["events"]) for each in page["sessions"]) == 20


class Guide:
    """A plugin that knows a lead, and explains what was found."""

    def __init__(self) -> None:
        self.found: JourneyRecords | None = None

    @hookimpl
    async def find_journey(self, query: JourneyQuery) -> list[JourneyLead]:
        return [JourneyLead("shop", visitors=["second"])] if query.user == "u1" else []

    @hookimpl
    def explain_journey(self, found: JourneyRecords) -> JourneyPart:
        self.found = found
        moment = JourneyMoment(
            found.records[0].at, "touchpoint", "mail", "shop", "second", detail="secret words", is_removed=True
        )
        facts = [JourneyFact("Order", "o-7", names="order"), JourneyFact("Weight", "3 kg")]
        return JourneyPart([moment], [JourneyExplanation("Parcel", facts)], ["A note."])


class Broken:
    @hookimpl
    def find_journey(self) -> None:
        raise LookupError("a plugin's fault")


@pytest.mark.logs("^ingestd.journeys WARNING plugin broken: find_journey failed: LookupError")
async def test_plugins_lead_and_explain_and_a_failing_one_harms_no_other() -> None:
    shop = Shop()
    guide = Guide()
    async with journal_of([shop.event("Page View", "second"), shop.event("Page View", "third")]) as backend:
        page = await reader(backend, guide=guide, broken=Broken())(user="u1")
        assert [each["visitor"] for each in page["sessions"]] == ["second"]
        assert guide.found is not None
        assert [each.position for each in guide.found.records] == [1]
        assert page["notes"] == ["The plugin broken has failed. The log has the reason.", "A note."]
        (moment,) = page["moments"]
        assert (moment["title"], moment["detail"], moment["removed"]) == ("mail", "secret words", True)
        assert page["orders"][0]["facts"][0] == {"name": "Order", "value": "o-7"}


async def test_the_daemon_hides_ids_and_free_texts_but_not_the_ids_of_the_query() -> None:
    shop = Shop()
    async with journal_of([shop.event("Page View", "second", user="u1")]) as backend:
        page = await reader(backend, guide=Guide(), show_data="shape")(user="u1")
        (session,) = page["sessions"]
        assert session["user"] == "u1"
        assert re.fullmatch("visitor #[0-9a-f]{8}", session["visitor"])
        assert re.fullmatch("session #[0-9a-f]{8}", session["session"])
        assert page["moments"][0]["detail"] == ""
        assert re.fullmatch("order #[0-9a-f]{8} 3 kg", " ".join(each["value"] for each in page["orders"][0]["facts"]))
        assert page["hidden"] is True
        with pytest.raises(Forbidden, match="show_data"):
            await reader(backend, show_data="none")(user="u1")


@pytest.mark.parametrize(
    "query", [{}, {"user": "u", "order": "o"}, {"visitor": "guest"}, {"order": "x" * 1001}, {"user": " NULL "}]
)
async def test_a_question_without_one_id_of_one_person_is_refused(query: dict[str, str]) -> None:
    async with journal_of([]) as backend:
        with pytest.raises(BadRequest):
            await reader(backend)(**query)


@given(st.lists(st.tuples(st.sampled_from(["visitor", "user"]), st.sampled_from("abcdef"))))
def test_equal_ids_have_equal_names_and_different_ids_different_ones(asked: list[tuple[str, str]]) -> None:
    names = Names(["a"], Disclosure("shape", [], []))
    given_names = {each: names.name(*each) for each in asked}
    assert len({*given_names.values()} - {"a"}) == len({each for each in given_names if each[1] != "a"})
    for (kind, value), name in given_names.items():
        assert name == names.name(kind, value)
        assert name == "a" if value == "a" else str(name).startswith(f"{kind} ")


def test_invisible_characters_of_callers_are_replaced_and_long_texts_cut() -> None:
    names = Names([], Disclosure("all", [], []))
    assert names.name("user", "a\u202eb\x00") == "a\ufffdb\ufffd"
    assert len(names.name("user", "x" * 1000) or "") == 200


async def test_one_request_works_four_wait_and_further_ones_are_refused() -> None:
    turns, working, free = SearchQueue(), 0, asyncio.Event()

    async def work() -> None:
        nonlocal working
        async with turns.wait():
            working += 1
            assert working == 1
            try:
                await free.wait()
            finally:
                working -= 1

    tasks = [asyncio.create_task(work()) for _ in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(Unavailable) as refusal:
        await work()
    assert refusal.value.retry_after
    tasks[0].cancel()  # its client has left, so the next one works
    tasks[2].cancel()
    await asyncio.sleep(0)
    free.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each is None for each in done] == [False, True, False, True, True]
