"""Click ids and referrers as touchpoints: when they are one, and when they get the credit of an order."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.store import State, state_key
from ingestd.plugins.attribution.arrivals import Arrivals
from ingestd.plugins.attribution.journeys import REFERRERS, TOUCHES, read_whole
from ingestd.plugins.attribution.packing import read_touches
from ingestd.plugins.attribution.reading import Seen, read
from ingestd.plugins.attribution.report import Row
from ingestd.plugins.attribution.touches import Exclusions, repeats
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.report import Report
from ingestd.plugins.sources import SourceRules
from ingestd.plugins.tools.forget.command import Forgetting
from ingestd.plugins.tools.forget.traces import Traces
from ingestd.support.unusable_ids import UnusableIds
from tests.plugins.tools.test_forget import make_hooks
from tests.support.attribution import Shop, agrees, attributing
from tests.support.attribution_reference import DAY, HOUR, Reference, Rules
from tests.support.journals import append, read_all

SHOP = "https://www.shop.example/"
GOOGLE, DUCK, BLOG = "https://www.google.com/", "https://duckduckgo.com/", "https://blog.example.net/mugs"
OWN, PAYMENT = f"{SHOP}cart", "https://www.paypal.com/"
AD, MAIL = "?utm_source=google&utm_medium=cpc", "?utm_source=newsletter&utm_medium=email"
CLICK = "?gclid=Cj0"


def context(query: str = "", referrer: str = "") -> dict[str, Any]:
    return {"page": {"url": SHOP + query, "referrer": referrer}}


async def attribution_of(records: list[Record], rules: Rules | None = None, size: int = 3) -> dict[str, Any]:
    """The attribution of the last record, by steps of this size. The reference must agree."""
    rules = rules or Rules(model="linear")
    with TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules) as attribution:
            await append(attribution.backend, records)
            await attribution.work_off(repeat(size), records[-1].at)
            derived = await attribution.derived()
    agrees(derived, Reference(rules, [record.decode() for record in records]))
    body: dict[str, Any] = msgspec.json.decode(derived[-1])
    return body


async def visited(pages: list[tuple[str, str]], rules: Rules | None = None) -> tuple[list[str], list[str]]:
    """The kinds of touchpoints after these pages of a session, and those with credit."""
    shop = Shop()
    records = [shop.event("Page View", "a", context=context(*page), session=1) for page in pages]
    body = await attribution_of([*records, shop.order("a")], rules)
    credited = {each["eventId"] for each in body["credits"]["linear"]}
    kinds = [(each["kind"], each["eventId"] in credited) for each in body["touchpoints"]]
    return [kind for kind, _ in kinds], [kind for kind, has_credit in kinds if has_credit]


@pytest.mark.parametrize(
    ("pages", "kinds", "credited"),
    [
        ([(CLICK, GOOGLE)], ["click"], ["click"]),
        ([(f"{AD}&gclid=Cj0", GOOGLE)], ["campaign"], ["campaign"]),
        ([("", GOOGLE)], ["referrer"], ["referrer"]),
        # A page of one document repeats the referrer, and the pages of a shop follow one another.
        ([("", GOOGLE), ("#mugs", GOOGLE), ("mug", OWN), ("cart", GOOGLE)], ["referrer"], ["referrer"]),
        # The return from a payment, and a second source in the session, name none.
        ([("", ""), ("thanks", PAYMENT)], [], []),
        ([("", GOOGLE), ("thanks", PAYMENT), ("", BLOG)], ["referrer"], ["referrer"]),
        ([(MAIL, ""), ("thanks", PAYMENT), ("", GOOGLE)], ["campaign"], ["campaign"]),
        ([("", OWN), ("", BLOG)], ["referrer"], ["referrer"]),
        # What comes after the referrer in the same session is a touchpoint too, and has the credit.
        ([("", GOOGLE), (MAIL, "")], ["referrer", "campaign"], ["campaign"]),
        ([("", GOOGLE), (CLICK, ""), ("", GOOGLE)], ["referrer", "click"], ["click"]),
        # A run goes on while campaign and click id are the same, as far as an event has them.
        ([(f"{AD}&gclid=Cj0", ""), (AD, ""), (CLICK, "")], ["campaign"], ["campaign"]),
        ([(AD, ""), (f"{AD}&gclid=Cj0", "")], ["campaign"] * 2, ["campaign"] * 2),
        ([(CLICK, ""), (CLICK, ""), ("?gclid=Cj1", "")], ["click"] * 2, ["click"] * 2),
        ([(CLICK, ""), (AD, "")], ["click", "campaign"], ["click", "campaign"]),
    ],
)
async def test_the_touchpoints_of_a_session(
    pages: list[tuple[str, str]], kinds: list[str], credited: list[str]
) -> None:
    assert await visited(pages) == (kinds, credited)


async def test_referrers_may_be_touchpoints_like_others_or_none_at_all() -> None:
    pages = [("", GOOGLE), (MAIL, "")]
    both = ["referrer", "campaign"]
    assert await visited(pages, Rules(model="linear", referrers="touchpoints")) == (both, both)
    assert await visited(pages, Rules(model="linear", referrers="off")) == (["campaign"], ["campaign"])


async def test_a_dispatch_names_a_source_too() -> None:
    shop = Shop()
    records = [
        shop.event("Page View", "a", context=context("", GOOGLE), session=1),
        shop.event("Page View", "a", context=context("", BLOG), dispatch="d-1", session=2),
        shop.event("Page View", "a", context=context("", BLOG), session=2),
    ]
    body = await attribution_of([*records, shop.order("a")])
    assert [each["kind"] for each in body["touchpoints"]] == ["referrer", "dispatch"]
    assert body["touchpoint"]["kind"] == "dispatch"


@pytest.mark.parametrize(
    "rules",
    [Rules(exclude_sources=("google",)), Rules(exclude_mediums=("organic",)), Rules(exclude_domains=("google.com",))],
)
async def test_an_excluded_referrer_names_no_source_and_is_not_listed(rules: Rules) -> None:
    shop = Shop()
    record = shop.event("Page View", "a", context=context("", GOOGLE), session=1)
    body = await attribution_of([record, shop.order("a")], rules)
    assert body["touchpoints"] == body["ignored"] == []


async def test_the_record_keeps_the_click_id_with_its_kind_and_channel() -> None:
    shop = Shop()
    visits = [shop.event("Page View", "a", context=context(query)) for query in (CLICK, f"{MAIL}&fbclid=IwAR1")]
    body = await attribution_of([*visits, shop.order("a")])
    click, campaign = body["touchpoints"]
    assert (click["source"], click["medium"], click["clickId"]) == ("google", "cpc", {"type": "gclid", "id": "Cj0"})
    assert (click["kind"], click["channel"]) == ("click", "Paid Search")
    assert (campaign["source"], campaign["clickId"]) == ("newsletter", {"type": "fbclid", "id": "IwAR1"})
    assert (campaign["kind"], campaign["channel"]) == ("campaign", "Email")


async def test_referrers_displace_no_other_touchpoint() -> None:
    """A campaign has the credit although many referrers came later, on the same and on other devices."""
    shop = Shop()
    records = [shop.event("Page View", "a", context=context("", GOOGLE)) for _ in range(3)]
    records += [shop.event("Page View", "a", context=context(MAIL))]
    records += [shop.event("Page View", each, context=context("", BLOG)) for each in "abcabcabcabc"]
    records += [shop.identify(each, "u") for each in "abc"]
    body = await attribution_of([*records, shop.order("a", user="u")], Rules(model="linear", max_touches=4))
    assert [each["kind"] for each in body["touchpoints"]] == ["referrer", "campaign", "referrer", "referrer"]
    assert body["touchpoint"]["source"] == "newsletter"
    assert [each["weight"] for each in body["credits"]["linear"]] == [1.0]


async def test_a_forgotten_visitor_comes_by_a_referrer_as_if_new(tmp_path: Path) -> None:
    """Although the session goes on, and its touchpoint was known."""
    shop, erasure = Shop(), {"type": "erasure", "tenant": "shop", "userId": None, "anonymousIds": ["a"]}
    pages = [shop.event("Page View", "a", context=context("", GOOGLE), session=1) for _ in range(6)]
    async with attributing(tmp_path, Rules()) as attribution:
        await append(attribution.backend, pages[:3])
        await attribution.work_off(repeat(1), shop.now)
        erased = Record("erasure", shop.now, msgspec.json.encode(erasure))
        await append(attribution.backend, [pages[3], erased, *pages[4:], shop.order("a")])
        await attribution.work_off(repeat(9), shop.now)
        (body,) = map(msgspec.json.decode, await attribution.derived())
    assert [each["eventId"] for each in body["touchpoints"]] == [pages[4].decode()["id"]]


def summed(attribution: dict[str, Any]) -> list[Row]:
    made = Report(columns_of(["channel", "campaign"]), ("linear",))
    made.add_derived(attribution)
    return [line.row for line in made.lines()]


@pytest.mark.parametrize(("length", "touches"), [(8, 1), (512, 1), (512, 400)])
async def test_no_id_of_a_forgotten_device_stays_in_orders_of_another(
    tmp_path: Path, length: int, touches: int
) -> None:
    """However short the form of its touchpoints is. The campaign stays, so reports do not change."""
    shop, device = Shop(), "é" * length
    clicks = f"?utm_source={'s' * 200}&utm_medium={'m' * 200}&utm_campaign={'n' * 250}&gclid=secret-click"
    visits = [shop.event("Page View", device, context=context(clicks), dispatch="secret-mail", session=1)]
    visits += [shop.event("Page View", device, dispatch=f"secret-{number}") for number in range(1, touches)]
    orders = [
        shop.event("Order Completed", "b", {"order_id": f"o-{number}", "revenue": 40}, user="u") for number in range(2)
    ]
    records = [*visits, shop.identify(device, "u"), shop.identify("b", "u"), *orders]
    async with attributing(tmp_path, Rules(max_touches=1000)) as attribution:
        journal, store = attribution.backend.journal, attribution.backend.store
        await attribution.append([*records, shop.refund("o-0", 1), shop.refund("o-1", 1, signed=True)])
        await attribution.work_off(repeat(99), shop.now)
        before = [record.decode() for record in await read_all(journal) if record.type == "attribution"]
        traces = Traces("shop", UnusableIds(), anonymous_id=device)
        forgetting = Forgetting(make_hooks(), store, journal, traces)
        await forgetting.learn()
        await forgetting.run()
        kept = [record for record in await read_all(journal) if record.type != "erasure"]
        assert not [record.type for record in kept if b"secret" in record.body or device.encode() in record.body]
        after = [record.decode() for record in kept if record.type == "attribution"]
        assert len(after) == 2
        assert after != before
        assert [*map(summed, after)] == [*map(summed, before)]


class Page(NamedTuple):
    visitor: str
    session: int
    query: str
    referrer: str
    dispatch: str | None
    age: int
    """Hours before its receipt: it may come late, and even too late."""


PAGES = st.lists(
    st.builds(
        Page,
        st.sampled_from("aab"),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from(["", "", "", MAIL, AD, CLICK, f"{AD}&gclid=Cj0", "?fbclid=x&q=1"]),
        st.sampled_from(["", GOOGLE, GOOGLE, BLOG, OWN, PAYMENT]),
        st.sampled_from([None, None, None, "d-1"]),
        st.sampled_from([0, 0, 1, 2, 30, 400]),
    ),
    min_size=1,
    max_size=20,
)


def made(pages: list[Page]) -> list[Record]:
    shop, records = Shop(), []
    for page in pages:
        shop.now += HOUR // 2
        records.append(
            shop.event(
                "Page View", page.visitor, age=page.age * HOUR, context=context(page.query, page.referrer),
                dispatch=page.dispatch, session=page.session,
            )
        )  # fmt: skip
    return [*records, shop.order("a")]


@given(PAGES, st.sampled_from(["fallback", "touchpoints", "off"]), st.sampled_from([2, 3, 200]), st.integers(1, 30))
def test_an_order_is_attributed_as_the_reference_says(pages: list[Page], referrers: Any, most: int, size: int) -> None:
    rules = Rules(model="time_decay", referrers=referrers, max_touches=most)
    asyncio.run(attribution_of(made(pages), rules, size))


async def remembered(state: State, visitor: str) -> set[str]:
    touches = await read_touches(state, state_key(TOUCHES, "shop", visitor))
    return {each.event_id for each in touches} | {
        each.event_id for _, each in await read_whole(state, state_key(REFERRERS, "shop", visitor))
    }


@given(PAGES)
def test_what_is_remembered_is_what_the_page_explains(pages: list[Page]) -> None:
    async def run() -> None:
        rules, records = Rules(window=2 * DAY, late=DAY), made(pages)
        with TemporaryDirectory() as folder:
            async with attributing(Path(folder), rules) as attribution:
                await append(attribution.backend, records)
                await attribution.work_off(repeat(7), records[-1].at)
                state = attribution.backend.store.begin(records[-1].at)
                found = {visitor: await remembered(state, visitor) for visitor in "ab"}
                journal = await read_all(attribution.backend.journal)
        arrivals = Arrivals(Exclusions((), (), ()), SourceRules(), "fallback")
        seen = [each for each in (read(each, arrivals, UnusableIds()) for each in journal) if isinstance(each, Seen)]
        touches = [
            (each.anonymous_id, each.received_at - 3 * DAY, each.touch) for each in seen if each.touch is not None
        ]
        gone = repeats(touches)
        for visitor, ids in found.items():
            assert ids == {
                touch.event_id
                for each, since, touch in touches
                if each == visitor and touch.at >= since and touch.event_id not in gone
            }

    asyncio.run(run())
