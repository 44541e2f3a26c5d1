"""A journey on the operators' page says the same as `ingestd attribution show`."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.journeys import JourneyQuery
from ingestd.plugins.attribution.explanation import explain_order, text_lines
from ingestd.plugins.attribution.models import MODELS
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.console.disclosure import Disclosure
from ingestd.plugins.console.journeys import JourneyReader
from ingestd.plugins.sources import Channels
from ingestd.storage.placements import Placements
from ingestd.support.unusable_ids import UnusableIds
from tests.support.attribution import Attribution, Shop, attributing
from tests.support.attribution_reference import HOUR, Rules
from tests.support.hooks import hooks_of
from tests.support.journals import read_all

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

DAY = 24 * HOUR
RULES = Rules(window=2 * DAY, late=DAY, model="position_based", exclude_sources=("partner",))
VISITORS = st.sampled_from(["laptop", "phone", "tablet"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("touch"), VISITORS, st.sampled_from(["search", "mail", "partner"]), st.integers(0, 3 * DAY)),
        st.tuples(st.just("page"), VISITORS, st.sampled_from(["", "?gclid=Cj0"])),
        st.tuples(st.just("identify"), VISITORS, st.sampled_from(["ada", "bob"])),
        st.tuples(st.just("order"), VISITORS, st.booleans()),
        st.tuples(st.just("refund"), st.sampled_from([None, 5, 100]), st.booleans()),
    ),
    max_size=25,
)


def made(steps: list[tuple[Any, ...]]) -> list[Record]:
    shop, records = Shop(), []
    for kind, *rest in steps:
        shop.now += HOUR
        if kind == "touch":
            records.append(shop.touch(rest[0], rest[1], age=rest[2]))
        elif kind == "page":
            page = {"url": f"https://shop.example/{rest[1]}", "referrer": "https://www.google.com/"}
            records.append(shop.event("Page View", rest[0], context={"page": page}))
        elif kind == "identify":
            records.append(shop.identify(*rest, linked=True))
        elif kind == "order":
            records.append(shop.order(rest[0], signed=rest[1]))
        else:
            records.append(shop.refund(revenue=rest[0], signed=rest[1]))
    return [*records, shop.order("laptop", "o-2")]


def reader(attribution: Attribution) -> JourneyReader:
    options = AttributionPlugin.Options(exclude_sources=RULES.exclude_sources)
    hooks, backend = hooks_of(attribution=AttributionPlugin(options)), attribution.backend
    disclosure = Disclosure("all", [], [])
    return JourneyReader(lambda: hooks, backend.partitions, Placements(1), UnusableIds(), disclosure=lambda: disclosure)


async def asked(attribution: Attribution, **query: str) -> Any:
    return json.loads(await reader(attribution).render(JourneyQuery(tenant="shop", **query)))


def texts(order: dict[str, Any]) -> list[str]:
    return [str(each["value"]) for each in order["facts"]]


def check(record: dict[str, Any], reversals: list[dict[str, Any]], order: dict[str, Any]) -> None:
    """The explanation has every share, age, device and reason that `ingestd attribution show` prints."""
    explained = explain_order(record, reversals, Channels(()))
    lines = [*text_lines(explained)]
    assert lines[0] == f"order {record['orderId']} of shop: {order['title'].removeprefix('Order of shop: ')}"
    assert {record["id"], record["orderEventId"], record["anonymousId"], record["userId"] or "none"} <= {*texts(order)}
    rows = [row for table in order["tables"] for row in table["rows"]]
    printed = [
        re.fullmatch(r"  (.)\s+(.+) before  (.*?)(?: / click gclid| / referrer)?( \[.*\])  \((.*)\)", line)
        for line in lines
    ]
    assert [[row[0], f" [{row[1]}]", *row[2:5]] for row in rows] == [
        [each[3], each[4], each[2], each[5], "credited" if each[1] == "→" else ""]
        for each in printed
        if each is not None
    ]
    for row, touchpoint in zip(rows, record["touchpoints"], strict=True):
        for model, share in zip(MODELS, row[5:], strict=True):
            weights = {each["eventId"]: each["weight"] for each in record["credits"][model]}
            assert share == round(100 * weights.get(touchpoint["eventId"], 0), 1)
    notes = [note for note in order["notes"] if "is ignored" not in note]  # they belong to no record
    assert notes == [f"{note[0].upper()}{note[1:]}." for note in explained.notes]
    assert lines[-len(explained.notes) :] == [f"  {note}" for note in explained.notes]


@given(STEPS)
def test_a_journey_says_what_attribution_show_says(steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with attributing(Path(folder), RULES) as attribution:
                records = made(steps)
                await attribution.append(records)
                await attribution.work_off(repeat(100), records[-1].at)
                derived = [json.loads(each) for each in await attribution.derived()]
                for order_id in ("o-1", "o-2"):
                    decided = [each for each in derived if each["orderId"] == order_id]
                    page = await asked(attribution, order=order_id)
                    attributions = [each for each in decided if each["type"] == "attribution"]
                    assert len(page["orders"]) == len(attributions)
                    for record, order in zip(attributions, page["orders"], strict=True):
                        reversals = [each for each in decided if each.get("attributionId") == record["id"]]
                        check(record, reversals, order)

    asyncio.run(run())


async def test_a_removed_order_is_told_from_its_mark(tmp_path: Path) -> None:
    async with attributing(tmp_path, RULES) as attribution:
        shop = Shop()
        records = [shop.touch("laptop", "search", age=3 * HOUR), shop.touch("laptop", "mail", age=HOUR)]
        records += [shop.order("laptop"), shop.refund(revenue=15), shop.event("Page View", "laptop")]
        await attribution.append(records)
        await attribution.work_off(repeat(100), records[-1].at)
        shown = (await asked(attribution, order="o-1"))["orders"]
        journal = attribution.backend.journal
        await journal.trim(await journal.last() - 1, 100)
        page = await asked(attribution, order="o-1")
        (order,) = page["orders"]
        assert "The journal has removed the record of this attribution." in order["notes"][0]
        assert order["title"] == "Order of shop: 40"
        assert "15 in 1 reversal" in texts(order)
        remembered, before = order["tables"][0]["rows"], shown[0]["tables"][0]["rows"]
        assert [row[2:3] + row[5:] for row in remembered] == [row[2:3] + row[5:] for row in before]
        page = await asked(attribution, visitor="laptop")
        assert [(each["title"], each["removed"]) for each in page["moments"]] == [("search", True), ("mail", True)]
        assert page["orders"] == []
        assert len(await read_all(journal)) == 1


async def test_a_waiting_refund_and_an_ignored_order_are_told(tmp_path: Path) -> None:
    async with attributing(tmp_path, Rules(orders="signed")) as attribution:
        shop = Shop()
        records = [shop.refund(revenue=15, signed=True), shop.order("laptop", "o-1")]
        await attribution.append(records)
        await attribution.work_off(repeat(100), records[-1].at)
        page = await asked(attribution, order="o-1")
        notes = " ".join(page["notes"])
        assert "This order is not attributed" in notes
        assert re.search(r"The refund \S+ of shop waits for its order: 15, received", notes)
        assert re.search(r"The order \S+, received \S+, is ignored: a public key sent it\.", notes)
        assert [(each["kind"], each["title"]) for each in page["moments"]] == [("refund", "15"), ("order", "40")]


async def test_a_user_has_the_journeys_of_all_devices_also_from_before_the_link(tmp_path: Path) -> None:
    async with attributing(tmp_path, RULES) as attribution:
        shop = Shop()
        records = [
            shop.touch("laptop", "search"), shop.touch("phone", "mail"), shop.touch("stranger", "mail"),
            shop.identify("laptop", "ada", linked=True), shop.identify("phone", "ada", linked=True),
            shop.order("phone", user="ada"),
        ]  # fmt: skip
        await attribution.append(records)
        await attribution.work_off(repeat(100), records[-1].at)
        page = await asked(attribution, user="ada")
        assert {each["visitor"] for each in page["sessions"]} == {"laptop", "phone"}
        assert [(each["kind"], each["title"]) for each in page["moments"]] == [
            ("touchpoint", "search"), ("touchpoint", "mail"), ("order", "40"),
        ]  # fmt: skip
        (order,) = page["orders"]
        assert [row[0] for row in order["tables"][0]["rows"]] == ["search", "mail"]
        assert {each["visitor"] for each in (await asked(attribution, visitor="phone"))["sessions"]} == {"phone"}
