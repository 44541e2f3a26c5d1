"""For any content of events, attribution decides their orders, its records stay small, and it continues."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from ingestd.api.consumer import Step
from ingestd.api.events import Record
from ingestd.api.store import state_key
from ingestd.plugins.attribution import untrusted
from ingestd.plugins.attribution.journeys import LINK, VISITORS
from ingestd.plugins.attribution.models import MODELS
from ingestd.plugins.attribution.record_size import texts_of
from ingestd.plugins.attribution.untrusted import find_untrusted
from tests.support.attribution import START, Shop, attributing
from tests.support.attribution_reference import HOUR, Rules
from tests.support.journals import append

DAY = 24 * HOUR
YEAR = 365 * DAY
DEFAULTS = Rules()
LONGEST = 256
"""The most characters of each campaign field in a touchpoint."""
MAX_ATTRIBUTION = 56 << 10
MAX_REVERSAL = 5000
MAX_PUBLIC_REVERSAL = 3000

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=8,
)
CAMPAIGNS = JSON | st.dictionaries(st.sampled_from(["source", "medium", "name", "term", "content", "id"]), JSON)
PAGES = JSON | st.dictionaries(
    st.sampled_from(["url", "referrer"]), JSON | TEXT.map("https://[::1/?utm_source={}".format)
)
CONTEXTS = st.fixed_dictionaries({}, optional={"campaign": CAMPAIGNS, "page": PAGES})
ITEMS = st.lists(st.dictionaries(st.sampled_from(["price", "quantity"]), JSON), max_size=3)
FIELDS = ["order_id", "revenue", "total", "value", "refund_id", "currency", "products"]
DATA = st.dictionaries(st.sampled_from(FIELDS), JSON) | st.fixed_dictionaries({"order_id": TEXT, "products": ITEMS})


async def decided(records: Sequence[Record], rules: Rules = DEFAULTS) -> list[dict[str, Any]]:
    """The records derived from these. A later order of another shop must be decided too."""
    shop = Shop()
    shop.now = max(record.at for record in records)
    afterwards = shop.event("Order Completed", "another visitor", {"order_id": "afterwards"}, tenant="another shop")
    with tempfile.TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules) as attribution:
            await append(attribution.backend, [*records, afterwards])
            await attribution.work_off(repeat(500), START + 200 * YEAR)
            found = await attribution.derived()
    bodies: list[dict[str, Any]] = [msgspec.json.decode(body) for body in found]
    assert bodies.pop()["orderId"] == "afterwards"
    return bodies


def size(body: dict[str, Any]) -> int:
    return len(msgspec.json.encode(body))


@pytest.mark.logs("sent again with another value", "is in another currency")
@given(contexts=st.lists(CONTEXTS, min_size=1, max_size=8), data=st.lists(DATA, min_size=1, max_size=4))
@example(contexts=[{}], data=[{"order_id": 0}, {"order_id": 0}])
@example(contexts=[{}], data=[{"order_id": "o", "value": -(10**4000), "refund_id": 10**4299}])
@example(contexts=[{}], data=[{"order_id": "o", "products": [{"price": 1.7e308, "quantity": 10**300}, {"price": 0.1}]}])
def test_orders_are_decided_for_any_content_of_events(
    contexts: list[dict[str, Any]], data: list[dict[str, Any]]
) -> None:
    shop = Shop()
    records = [shop.event("Page View", "a", context=context) for context in contexts]
    early = [shop.event("Order Refunded", "a", each) for each in data]
    records += [shop.event("Order Completed", "a", each, context=contexts[0]) for each in data]
    records += [shop.event("Order Refunded", "a", each, context=contexts[0]) for each in data]
    bodies = asyncio.run(decided([*early, *records]))
    attributions = [body for body in bodies if body["type"] == "attribution"]
    orders = [each.get("order_id") for each in data]
    without_id = sum(each == "" or isinstance(each, bool) or not isinstance(each, str | int) for each in orders)
    assert without_id <= len(attributions) <= len(data)
    assert attributions[0]["orderEventId"] == records[len(contexts)].decode()["id"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "?",
        "utm_source",
        "?utm_source",
        "?utm_source=%",
        "https://[::1/?utm_source=%E0%A4%A",
        "http://:99999999/?&&&=&utm_source==&;",
        "?" + "utm_source=" * 50_000,
        "?utm_source=" + "%00" * 100_000,
        "?utm_source=" + "+" * 500_000,
        "?" + "a=b&" * 200_000,
        "\x00?\ufffe#?utm_source=\U0010ffff",
        "data:" + "?" * 500_000,
    ],
    ids=lambda url: repr(url[:40]),
)
async def test_garbage_instead_of_an_address_is_harmless(url: str) -> None:
    shop = Shop()
    visit = shop.event("Page View", "a", context={"page": {"url": url, "referrer": url}})
    rules = Rules(exclude_domains=("shop.example",))
    (attribution,) = await decided([visit, shop.order("a")], rules)
    assert size(attribution) < 10_000


async def test_long_names_of_a_campaign_are_cut() -> None:
    """200 touchpoints with names of ten kilobytes, in letters that are long in JSON."""
    shop = Shop()
    long = "\N{PILE OF POO}\x01" * 5000
    names = dict.fromkeys(("source", "medium", "name", "term", "content"), long)
    records = []
    for _ in range(150):
        records.append(shop.event("Page View", "a", context={"campaign": names}, dispatch=long))
        records.append(shop.event("Page View", "a", context={"page": {"url": f"?utm_source={long}&utm_term={long}"}}))
    (attribution,) = await decided([*records, shop.order("a")])
    assert len(attribution["touchpoints"]) == 200
    for name in (*names, "dispatchId"):
        assert len(attribution["touchpoint"][name] or "") <= LONGEST
    assert size(attribution) <= MAX_ATTRIBUTION


async def test_blanks_are_no_campaign() -> None:
    shop = Shop()
    blanks = ("", " ", "\t\n", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}\r")
    records = [
        *(shop.event("Page View", "a", context={"campaign": {"source": blank, "name": blank}}) for blank in blanks),
        *(
            shop.event("Page View", "a", context={"page": {"url": f"?utm_source={blank}"}})
            for blank in (*blanks, "+%20")
        ),
        *(shop.event("Page View", "a", dispatch=blank) for blank in blanks),
    ]
    (attribution,) = await decided([*records, shop.order("a")])
    assert attribution["touchpoints"] == []
    assert attribution["touchpoint"] is None
    assert set(map(len, attribution["credits"].values())) == {0}


async def test_of_a_thousand_visitors_of_a_user_the_newest_count() -> None:
    """The visitors linked last and the order's visitor count, with the first and the newest of their touches."""
    shop, records = Shop(), []
    for number in range(1000):
        shop.now += 1000
        records += [shop.touch(f"visitor-{number}", f"source-{number}") for _ in range(3)]
        records.append(shop.identify(f"visitor-{number}", "u"))
    (attribution,) = await decided([*records, shop.order("visitor-0")])
    assert (attribution["userId"], attribution["leftOut"]) == ("u", 101 * 3 - 200)
    sources = [touchpoint["source"] for touchpoint in attribution["touchpoints"] if "source" in touchpoint]
    assert sources[0] == "source-0"
    whole = [f"source-{1000 - 1 - number // 3}" for number in range(199)][::-1]
    assert [*dict.fromkeys(sources[1:])] == [*dict.fromkeys(whole)]
    assert [texts and texts["source"] for _, texts in texts_of(attribution)] == ["source-0", *whole]
    assert size(attribution) <= MAX_ATTRIBUTION


async def test_of_a_thousand_users_of_a_visitor_the_last_counts() -> None:
    shop = Shop()
    records = [shop.touch("a", "search"), shop.touch("b", "mail"), shop.identify("b", "user-0")]
    records += [shop.identify("a", f"user-{number}") for number in range(1000)]
    of_the_last = shop.order("a")
    of_the_first = shop.order("c", "o-2", user="user-0")
    last, first = await decided([*records, of_the_last, of_the_first])
    assert (last["userId"], [each["source"] for each in last["touchpoints"]]) == ("user-999", ["search"])
    assert (first["userId"], [each["source"] for each in first["touchpoints"]]) == ("user-0", ["mail"])


async def test_of_thousands_of_touches_the_first_and_the_newest_count() -> None:
    shop, records = Shop(), []
    for number in range(3_000):
        shop.now += 1
        records.append(shop.touch("robot", str(number)))
    (attribution,) = await decided([*records, shop.order("robot")])
    sources = [int(touchpoint["source"]) for touchpoint in attribution["touchpoints"]]
    assert sources == [0, *range(3_000 - 199, 3_000)]


async def test_each_order_without_any_data_is_a_separate_order() -> None:
    """No refund or cancellation can refer to it."""
    shop = Shop()
    empty: list[dict[str, Any]] = [{}, {}, {"order_id": ""}, {"order_id": None, "revenue": None, "currency": None}]
    records = [shop.event("Order Completed", "a", data) for data in empty]
    records += [shop.event(key, "a", data) for key in ("Order Refunded", "Order Cancelled") for data in empty]
    bodies = await decided(records)
    assert [body["orderEventId"] for body in bodies] == [record.decode()["id"] for record in records[: len(empty)]]
    assert len({body["id"] for body in bodies}) == len(empty)
    for body in bodies:
        assert body["orderId"] is None
        assert body["value"] == {"revenue": None, "total": None, "currency": None}


async def test_an_order_without_a_value_is_reversed_once() -> None:
    shop = Shop()
    refunds = [shop.refund("o-1", 10), shop.refund("o-1"), shop.event("Order Cancelled", "a", {"order_id": "o-1"})]
    attribution, reversal = await decided([shop.order("a", revenue=None), *refunds])
    assert reversal["attributionId"] == attribution["id"]
    assert reversal["value"] == attribution["value"] == {"revenue": None, "total": None, "currency": None}


@pytest.mark.parametrize(
    "worth",
    [1e308, -1e308, 5e-324, -5, 0, 0.0, -0.0, 2**53, 2**64, 10**30, 10**400, -(10**4000)],
    ids=lambda worth: str(worth)[:9],
)
async def test_amounts_of_any_size_are_harmless(worth: float) -> None:
    shop, orders, records = Shop(), dict[str, list[dict[str, Any]]](), list[Record]()
    for asked in (1e308, -5, 0, 5e-324, 10**400, None):
        orders[order := f"o {asked!s:.9}"] = []
        refunds = [shop.refund(order, asked) for _ in range(3)]
        cancel = shop.event("Order Cancelled", "a", {"order_id": order})
        records += [shop.order("a", order, revenue=worth), *refunds, cancel, shop.refund(order, 1)]
    for body in await decided(records):
        orders[body["orderId"]].append(body)
    for attribution, *reversals in orders.values():
        assert 1 <= len(reversals) <= 4
        for reversal in reversals:
            text = json.dumps(reversal["value"])
            amount = reversal["value"]["revenue"]
            assert len(text) < 100
            if attribution["value"]["revenue"] is not None:
                assert math.isfinite(amount)
                assert abs(amount) <= abs(float(attribution["value"]["revenue"]))


async def test_an_order_stays_decided_when_the_clock_was_years_behind_for_its_refund(tmp_path: Path) -> None:
    shop, records = Shop(), []
    records += [shop.touch("a", "mail"), shop.order("a")]
    shop.now = START - 3 * YEAR
    records.append(shop.refund("o-1", 10))
    shop.now = START + DAY
    records += [shop.order("a"), shop.refund("o-1")]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        for record in records:
            await attribution.append([record])
            await attribution.work_off(repeat(10), record.at)
        bodies = [msgspec.json.decode(body) for body in await attribution.derived()]
    assert [body["type"] for body in bodies] == ["attribution", "attribution_reversal", "attribution_reversal"]
    assert sum(body["value"]["revenue"] for body in bodies[1:]) == 40


async def test_a_step_ends_before_it_has_too_many_bytes(tmp_path: Path) -> None:
    """Many orders of visitors with many long campaigns: each record has 56 KiB."""
    shop = Shop()
    text = "x" * 240
    visitors = [f"v{number}" for number in range(8)]
    journeys = [
        shop.event("Page View", visitor, context={"campaign": dict.fromkeys(["source", "name", "term"], f"{n} {text}")})
        for visitor in visitors
        for n in range(200)
    ]
    orders = [shop.order(visitor, f"{visitor} {number}") for visitor in visitors for number in range(8)]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        await append(attribution.backend, journeys)
        await attribution.work_off(repeat(1000), START)
        await append(attribution.backend, orders)
        journal, store = attribution.backend.journal, attribution.backend.store
        records = await journal.read(len(journeys), 1000)
        step = Step(store.begin(START, step=True))
        await attribution.consumer.process(records, step)
        assert step.done is not None
        assert 0 < step.done < len(orders)
        assert 2 << 20 < sum(len(record.body) for record in step.records) < 3 << 20
        store.discard(step.state)
        await attribution.work_off(repeat(1000), START)
        bodies = [json.loads(body) for body in await attribution.derived()]
    assert [body["orderId"] for body in bodies] == [
        f"{visitor} {number}" for visitor in visitors for number in range(8)
    ]
    assert {len(body["touchpoints"]) for body in bodies} == {200}


async def test_an_order_of_a_user_with_many_visitors_needs_the_touchpoints_of_a_few_at_a_time(tmp_path: Path) -> None:
    shop = Shop()
    text = "x" * 240 + "\N{GRINNING FACE}"
    visitors = [f"v{number}" for number in range(40)]
    journeys = [shop.identify(visitor, "user") for visitor in visitors]
    journeys += [
        shop.event("Page View", visitor, context={"campaign": dict.fromkeys(["source", "name"], f"{n} {text}")})
        for visitor in visitors
        for n in range(50)
    ]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        await append(attribution.backend, journeys)
        await attribution.work_off(repeat(1000), START)
        await append(attribution.backend, [shop.order(visitors[0], "one"), shop.order(visitors[1], "two")])
        journal, store = attribution.backend.journal, attribution.backend.store
        step = Step(store.begin(START, step=True))
        await attribution.consumer.process(await journal.read(len(journeys), 1000), step)
        # All touchpoints take 40 times 50 times 2 kB.
        assert 0 < step.state.size < 1 << 20
        store.discard(step.state)
        await attribution.work_off(repeat(1000), START)
        bodies = [json.loads(body) for body in await attribution.derived()]
    assert [(body["orderId"], len(body["touchpoints"])) for body in bodies] == [("one", 200), ("two", 200)]


# Bytes and numbers of records

WIDE = st.sampled_from(["x", "\x01", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{PILE OF POO}", '"'])


def long(most: int) -> st.SearchStrategy[str]:
    return st.builds(lambda letter, length: letter * length, WIDE, st.sampled_from([1, 30, most]))


@given(data=st.data())
@settings(phases=[Phase.generate])
def test_records_are_small_whatever_a_public_key_sends(data: st.DataObject) -> None:
    shop, visitor = Shop(), f"v{data.draw(long(511))}"
    user = data.draw(st.none() | long(10_000).map("u{}".format))
    devices = [visitor, f"{visitor[:500]}-2"] if user else [visitor]
    fields = ["source", "medium", "name", "term", "content"]
    texts = data.draw(st.dictionaries(st.sampled_from(fields), long(300), min_size=1))
    records = [shop.identify(each, user) for each in devices if user]
    visits = data.draw(st.sampled_from([1, 12, 13, 120, 250]))
    for number in range(visits):
        campaign = {name: f"{text}{number % 30 if name == 'source' else ''}" for name, text in texts.items()}
        dispatch = data.draw(st.none() | long(300)) if number < 3 else None
        records.append(
            shop.event("Page View", devices[number % len(devices)], context={"campaign": campaign}, dispatch=dispatch)
        )
    own = {"order_id": f"o{data.draw(long(10_000))}", "total": 100, "currency": data.draw(long(100))}
    records.append(shop.event("Order Completed", visitor, own, user=data.draw(st.sampled_from([None, user]))))
    records += [shop.event("Order Refunded", visitor, {**own, "total": 0.25}) for _ in range(2)]
    records.append(shop.event("Order Completed", visitor, own, signed=True))
    public, *reversals, signed = asyncio.run(decided(records, Rules(model=data.draw(st.sampled_from(MODELS)))))
    assert [each["reason"] for each in reversals] == ["refund", "refund", "superseded"]
    for attribution in public, signed:
        assert size(attribution) <= MAX_ATTRIBUTION
        ids = [each["eventId"] for each in attribution["touchpoints"]]
        assert min(visits, 120) <= len(ids) <= 200
        for shares in attribution["credits"].values():
            assert {share["eventId"] for share in shares} <= {*ids}
    for reversal in reversals:
        is_public = reversal["reason"] != "superseded"
        assert size(reversal) <= (MAX_PUBLIC_REVERSAL if is_public else MAX_REVERSAL)
        assert reversal["attributionId"] == public["id"]
        for name in "orderId", "orderEventId", "orderAt", "userId":
            assert reversal[name] == public[name]
        is_long = is_public and len(msgspec.json.encode(visitor)) > 1000
        assert reversal["anonymousId"] in {visitor, None if is_long else visitor}
        assert reversal["touchpoint"]["eventId"] == public["touchpoint"]["eventId"]
        for model, shares in reversal["credits"].items():
            assert shares is None or shares == public["credits"][model]
        assert reversal["credits"]["last_touch"] == public["credits"]["last_touch"]


@pytest.mark.parametrize("visits", [3, 12])
async def test_a_reversal_repeats_the_credits_of_a_shortened_attribution(visits: int) -> None:
    shop = Shop()
    long_text = "\x01" * 250
    texts = dict.fromkeys(["source", "medium", "name", "term"], long_text)
    campaigns = [{**texts, "content": f"{number}{long_text}"} for number in range(visits)]
    records = [
        shop.event("Page View", "v", age=visits - number, context={"campaign": campaign})
        for number, campaign in enumerate(campaigns)
    ]
    order = shop.event("Order Completed", "v", {"order_id": "o", "total": 100}, signed=True)
    refund = shop.event("Order Refunded", "v", {"order_id": "o", "total": 1}, signed=True)
    attribution, reversal = await decided([*records, order, refund], Rules())
    assert ("shortened" in attribution) == (visits == 12)
    assert reversal["credits"] == attribution["credits"]


async def test_a_large_record_keeps_each_campaign_once() -> None:
    """The report has the campaigns of all touchpoints, also where a record has no room for all of their members."""
    shop = Shop()
    visits = [
        shop.event(
            "Page View", "a", context={"campaign": {"source": f"source-{n % 25}", "medium": "cpc", "name": "autumn"}}
        )
        for n in range(200)
    ]
    (attribution,) = await decided([*visits, shop.order("a")])
    assert size(attribution) <= MAX_ATTRIBUTION
    assert [texts and texts["source"] for _, texts in texts_of(attribution)] == [f"source-{n % 25}" for n in range(200)]
    assert attribution["touchpoints"][-1] == attribution["touchpoint"]
    assert attribution["shortened"] == sum("at" not in each for each in attribution["touchpoints"]) > 100
    assert set(map(len, attribution["credits"].values())) == {1, 200}


@pytest.mark.parametrize("user", [None, "u"])
async def test_the_orders_of_a_public_key_a_day_are_limited(
    tmp_path: Path, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "MAX_OF_USER", 120)
    shop = Shop()
    most = 120 if user else 100

    def order(number: int, **more: Any) -> Record:
        return shop.order(f"v{number}" if user else "v0", f"o-{number}", user=user, **more)

    records = [order(number) for number in range(130)]
    records += [
        shop.order("another", "another"),
        *(order(number) for number in range(3)),
        order(129, signed=True),
        order(130, signed=True),
    ]
    shop.now += DAY
    records += [order(128), shop.refund("o-125")]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        await append(attribution.backend, records)
        await attribution.work_off(repeat(50), START + DAY)
        found = [msgspec.json.decode(body)["orderId"] for body in await attribution.derived()]
        counted = attribution.counted("orders")
        state = attribution.backend.store.begin(START + DAY)
        (ignored,) = await find_untrusted(state, "shop", "o-125")
        assert (ignored.kind, ignored.is_excess) == ("order", True)
    assert found == [*(f"o-{number}" for number in range(most)), "another", "o-129", "o-130", "o-128"]
    assert counted == {"direct": most + 4, "too_many": 130 - most, "repeated": 3}


async def test_the_reversals_of_public_keys_are_limited(tmp_path: Path) -> None:
    shop = Shop()
    records = [
        shop.order("a", revenue=1000),
        *(shop.refund("o-1", 0.01) for _ in range(110)),
        shop.refund("o-1", 1, signed=True),
    ]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        await append(attribution.backend, records)
        await attribution.work_off(repeat(50), START)
        reversals = [msgspec.json.decode(body) for body in await attribution.derived()][1:]
        assert attribution.counted("reversals") == {"reversed": 101, "too_many": 10}
    assert [each["value"]["revenue"] for each in reversals] == [*[0.01] * 100, 1]


# Links


@pytest.mark.parametrize(("visits", "user"), [([0, 401], None), ([0, 400], "u"), ([0, 350, 700], "u")])
async def test_a_link_counts_400_days_from_the_last_link_or_touchpoint(
    tmp_path: Path, visits: list[int], user: str | None
) -> None:
    """By the times of the journal, however late attribution runs. The entries have an end, too."""
    shop, records = Shop(), [Shop().identify("phone", "u")]
    for day in visits:
        shop.now = START + day * DAY
        records.append(shop.touch("phone", f"day {day}"))
    records += [shop.order("phone"), shop.order("laptop", "o-2", user="u")]
    async with attributing(tmp_path, DEFAULTS) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(2), shop.now + 20 * DAY)
        own, other = [msgspec.json.decode(body) for body in await attribution.derived()]
        assert (own["userId"], len(other["touchpoints"])) == (user, 1 if user else 0)
        state = attribution.backend.store.begin(shop.now + 460 * DAY)
        assert await state.get(state_key(LINK, "shop", "phone")) is None
        assert await state.window(state_key(VISITORS, "shop", "u")) == []


async def test_a_link_of_an_earlier_version_counts_and_gets_an_end(tmp_path: Path) -> None:
    shop = Shop()
    async with attributing(tmp_path, DEFAULTS) as attribution:
        store = attribution.backend.store
        state = store.begin(START)
        for place, visitor in enumerate(["phone", "tablet"]):
            await state.put(state_key(LINK, "shop", visitor), "u")
            await state.push(state_key(VISITORS, "shop", "u"), visitor, place, keep=100)
        await store.commit(state)
        await attribution.append([shop.touch("phone", "mail"), shop.touch("tablet", "ad"), shop.order("phone")])
        await attribution.work_off(repeat(10), START)
        (body,) = [msgspec.json.decode(body) for body in await attribution.derived()]
        assert (body["userId"], len(body["touchpoints"])) == ("u", 2)
        state = store.begin(START + 460 * DAY)
        assert await state.get(state_key(LINK, "shop", "phone")) is None
        assert await state.window(state_key(VISITORS, "shop", "u")) == []
