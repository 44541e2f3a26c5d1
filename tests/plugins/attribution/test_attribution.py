"""Attribution equals a reference model for every journey, regardless of how the consumer gets its work."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate, cycle, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.store import State
from ingestd.api.times import parse_time
from ingestd.consumers.group import ConsumerStatus
from tests.support.attribution import START, Shop, agrees, attributing
from tests.support.attribution_reference import HOUR, Reference, Rules, amount_of
from tests.support.examples import examples
from tests.support.journals import append, running, until

DAY = 24 * HOUR
YEAR = 365 * DAY
LONG_AFTER = START + 200 * YEAR
ALL = repeat(10_000)
CONFLICTS = pytest.mark.logs("sent again with another value", "is in another currency")

# Limits are small. Times are from a grid that contains the edges of the limits, and a millisecond beside them.
RULES = st.builds(
    Rules,
    model=st.sampled_from(["last_touch", "first_touch", "linear", "position_based", "time_decay"]),
    window=st.sampled_from([HOUR, 3 * HOUR, 168 * HOUR]),
    half_life=st.sampled_from([HOUR // 2, 5 * HOUR]),
    late=st.sampled_from([0, 2 * HOUR, 168 * HOUR]),
    order_memory=st.sampled_from([2 * HOUR, 9600 * HOUR]),
    max_touches=st.sampled_from([2, 3, 200]),
    max_visitors=st.sampled_from([2, 2, 3, 100]),
    exclude_sources=st.sampled_from([(), (), ("paypal",)]),
    exclude_mediums=st.sampled_from([(), (), ("referral",)]),
    exclude_domains=st.sampled_from([(), (), ("shop.example",)]),
    orders=st.sampled_from(["any", "any", "signed"]),
)
OFTEN = [*[0] * 16, *[1] * 3, *[HOUR] * 10, *[2 * HOUR] * 5, *[5 * HOUR] * 2]
STEADY = st.sampled_from(OFTEN)
ANY_CLOCK = st.sampled_from([*OFTEN, -1, -HOUR, 3 * YEAR, -3 * YEAR])
SKEWS = st.lists(st.sampled_from([0, 0, 0, 10 * DAY, -10 * DAY]), min_size=1, max_size=7)
CONTEXTS = st.sampled_from(
    [
        {},
        {},
        {"campaign": {"source": "mail", "medium": "email", "name": "autumn"}},
        {"campaign": {"source": "Paypal", "medium": "wallet"}},
        {"campaign": {"name": "autumn", "medium": "Referral", "term": "boots"}},
        {
            "campaign": {"source": " ", "name": ""},
            "page": {"url": "https://shop.example/?utm_source=search&UTM_Medium=cpc"},
        },
        {"page": {"url": "/?gclid=7&utm_campaign=spring+sale%21#utm_source=no", "referrer": "https://search.example/"}},
        {"page": {"url": "/?utm_source=banner", "referrer": "https://pay.shop.example/done"}},
        {"campaign": {"source": "shop.example"}},
        {"page": {"url": "https://shop.example/"}},
    ]
)
DATA = st.fixed_dictionaries(
    {},
    optional={
        "order_id": st.sampled_from(["o-1", "o-1", "o-2", "o-3", "", " ", " Guest"]),
        "revenue": st.sampled_from([40, 40.0, 12.5, 0.1, 0, -30, 10**12 + 1]),
        "total": st.sampled_from([50, 33.33]),
        "value": st.sampled_from([7, -2.5, 0, True, "30", [30], -1e300]),
        "products": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "product_id": st.just("p"),
                    "price": st.sampled_from([5, 0.1, 19.99, 0, -3, 1e12]),
                    "quantity": st.sampled_from([1, 2, 3, 0, 0.5]),
                },
            ),
            max_size=3,
        ),
        "refund_id": st.sampled_from(["r-1", "r-1", " r-1 ", "7", 7, " ", "GUEST"]),
        "currency": st.sampled_from(["EUR", "EUR", "eur", " Eur ", "CZK", "", " "]),
    },
)
VISITS = ["Page View"] * 4
ORDERS = [*["Order Completed"] * 3, "Order Refunded", "Order Refunded", "Order Cancelled"]
LINKS = ["identify"] * 4


def happenings(advance: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, Any]]]:
    happening = st.fixed_dictionaries(
        {
            "advance": advance,
            "what": st.sampled_from([*VISITS, *ORDERS, *LINKS]),
            "visitor": st.sampled_from(["a", "a", "b", "b", "c", "c", "d", "guest"]),
            "tenant": st.sampled_from([*["shop"] * 7, "other"]),
            "user": st.sampled_from([None, None, None, "u", "u", "u", "v", "guest"]),
            "age": st.sampled_from([0, 0, 0, 0, 1, HOUR, HOUR + 1, 3 * HOUR, 3 * HOUR + 1, 5 * HOUR, 20 * HOUR]),
            "context": CONTEXTS,
            "dispatch": st.sampled_from([None, None, None, "mailing-7"]),
            "session": st.sampled_from([None, 1, 1, 2]),
            "data": DATA,
            "signed": st.booleans(),
            "linked": st.sampled_from([None, None, True, False]),
        }
    )
    # hypothesis prefers short lists, but long journeys find more faults. The first kind allows a failure to shrink.
    return st.lists(happening, min_size=1, max_size=60) | st.lists(happening, min_size=25, max_size=60)


def play(happenings: Iterable[dict[str, Any]]) -> list[Record]:
    """The records of these happenings in the journal."""
    shop, clock = Shop(), START
    records = []
    for each in happenings:
        clock += each["advance"]
        shop.now = clock + each.get("skew", 0)
        given_: dict[str, Any] = {
            name: each[name] for name in ("user", "age", "context", "tenant", "signed", "session")
        }
        if each["what"] == "identify":
            linked = each["linked"] if each["user"] is not None else None
            records.append(shop.identify(each["visitor"], **given_, linked=linked))
        else:
            data = each["data"] if each["what"] in ORDERS else {}
            records.append(shop.event(each["what"], each["visitor"], data, dispatch=each["dispatch"], **given_))
    return records


class Outcome(NamedTuple):
    derived: list[bytes]
    orders: dict[str, int]
    reversals: dict[str, int]
    amounts_ignored: int


async def attributed(rules: Rules, records: Sequence[Record], sizes: Iterable[int] = ALL) -> Outcome:
    """The result of a complete journal that the consumer reads long after its records were received."""
    with tempfile.TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules) as attribution:
            await append(attribution.backend, records)
            await attribution.work_off(sizes, LONG_AFTER)
            return Outcome(
                await attribution.derived(),
                attribution.counted("orders"),
                attribution.counted("reversals"),
                attribution.amounts_ignored(),
            )


# Any journey


@CONFLICTS
@given(rules=RULES, happenings=happenings(ANY_CLOCK))
def test_attributions_and_counts_equal_the_reference(rules: Rules, happenings: list[dict[str, Any]]) -> None:
    records = play(happenings)
    reference = Reference(rules, [record.decode() for record in records])
    outcome = asyncio.run(attributed(rules, records))
    agrees(outcome.derived, reference)
    assert (outcome.orders, outcome.reversals) == (reference.orders, reference.reversals)
    assert outcome.amounts_ignored == reference.amounts_ignored


@CONFLICTS
@given(rules=RULES, happenings=happenings(ANY_CLOCK))
def test_decisions_are_unique_shares_sum_to_one_and_reversals_are_bounded(
    rules: Rules, happenings: list[dict[str, Any]]
) -> None:
    records = play(happenings)
    # Clocks go back, so what is forgotten goes by the latest time that came before.
    latest = dict(
        zip((each.decode()["id"] for each in records), accumulate((each.at for each in records), max), strict=True)
    )
    outcome = asyncio.run(attributed(rules, records))
    bodies = [msgspec.json.decode(body) for body in outcome.derived]
    decided: dict[str, int] = {}
    left: dict[str, Fraction] = {}
    for body in bodies:
        at, worth = parse_time(body["decidedAt"]), amount_of(body["value"]) or Fraction(0)
        assert at is not None
        if body["type"] == "attribution":
            # An order is decided again only if its first decision has been forgotten.
            since = latest[body["orderEventId"]] - decided.get(body["id"], 0)
            assert body["id"] not in decided or since > rules.order_memory
            decided[body["id"]], left[body["id"]] = at, worth
            assert len(body["touchpoints"]) <= rules.max_touches
            assert (body["touchpoint"] is None) == (not body["touchpoints"])
        else:
            assert 0 <= worth / left[body["attributionId"]] <= 1 if worth else True
            left[body["attributionId"]] -= worth
        for shares in body["credits"].values():
            assert not shares or sum(share["weight"] for share in shares) == pytest.approx(1, abs=1e-9)
    ids = [body["id"] for body in bodies if body["type"] == "attribution_reversal"]
    assert len(ids) == len({*ids})


# Examples at the edges of limits


def sources(rules: Rules, records: Sequence[Record]) -> list[str]:
    """The sources of the last order's touchpoints. The reference must agree with all decisions."""
    derived = asyncio.run(attributed(rules, records)).derived
    agrees(derived, Reference(rules, [record.decode() for record in records]))
    return [touchpoint["source"] for touchpoint in msgspec.json.decode(derived[-1])["touchpoints"]]


@pytest.mark.parametrize(("before", "counts"), [(0, True), (168 * HOUR, True), (168 * HOUR + 1, False)])
@pytest.mark.parametrize("late", [0, 1, 168 * HOUR])
def test_a_touch_counts_up_to_the_edge_of_the_window(before: int, late: int, counts: bool) -> None:
    """The times of the events count, not the times of their receipt."""
    shop = Shop()
    records = [shop.touch("a", "search", age=late)]
    shop.now += before
    records.append(shop.order("a", age=late))
    assert sources(Rules(), records) == ["search"] * counts
    assert sources(Rules(late=late), records) == ["search"] * counts


def test_an_order_received_later_than_the_option_late_loses_its_oldest_touches() -> None:
    shop = Shop()
    records = [shop.touch("a", "search")]
    shop.now += 1
    records.append(shop.touch("a", "mail"))
    shop.now += 3 * HOUR
    assert sources(Rules(window=2 * HOUR, late=HOUR), [*records, shop.order("a", age=HOUR + 1)]) == ["mail"]
    assert sources(Rules(window=2 * HOUR, late=HOUR + 1), [*records, shop.order("a", age=HOUR + 1)]) == [
        "search",
        "mail",
    ]


def test_touches_of_the_same_moment_count_if_the_journal_has_them_before_the_order() -> None:
    shop = Shop()
    before = [shop.touch("a", source) for source in ("search", "mail", "search")]
    order = shop.order("a")
    assert sources(Rules(), [*before, order, shop.touch("a", "social")]) == ["search", "mail", "search"]
    assert sources(Rules(), [shop.touch("a", "future", age=-1), *before, order]) == ["search", "mail", "search"]


def test_the_last_link_of_a_visitor_counts_and_only_from_its_position_on() -> None:
    shop = Shop()
    phone, laptop = shop.touch("phone", "mail"), shop.touch("laptop", "search")
    links = [shop.identify("phone", "u"), shop.identify("laptop", "u")]
    assert sources(Rules(), [phone, laptop, links[0], shop.order("laptop"), links[1]]) == ["search"]
    assert sources(Rules(), [phone, laptop, *links, shop.order("laptop")]) == ["mail", "search"]
    moved = [phone, laptop, *links, shop.identify("phone", "v")]
    assert sources(Rules(), [*moved, shop.order("laptop")]) == ["search"]
    assert sources(Rules(), [*moved, shop.order("laptop", user="v")]) == ["mail", "search"]
    assert sources(Rules(), [*moved, shop.identify("laptop", "guest"), shop.order("backend", user="u")]) == ["search"]


def test_an_unusable_id_names_no_visitor_no_user_and_no_order() -> None:
    shop, words = Shop(), Rules(unusable=("undefined", "null"))
    shared = [shop.touch("undefined", "mail"), shop.identify("undefined", "u"), shop.touch("undefined", "search")]
    assert sources(words, [*shared, shop.order("undefined")]) == []
    assert sources(words, [*shared, shop.order("a", user="u")]) == []
    own = [*shared, shop.identify("a", "u"), shop.touch("a", "social")]
    assert sources(words, [*own, shop.order("undefined", user="u")]) == ["social"]
    assert sources(words, [*own, shop.identify("b", "null"), shop.order("b", user="null")]) == []
    assert sources(words, [*own, shop.order("a", user="null")]) == ["social"]
    unnamed = [shop.order("a", " NULL "), shop.order("a", "null"), shop.refund("null")]
    outcome = asyncio.run(attributed(words, [*own, *unnamed]))
    assert outcome.orders == {"attributed": 2}
    assert outcome.reversals == {"unknown_order": 1}


def test_beyond_the_bounds_the_first_and_newest_touches_and_the_newest_visitors_count() -> None:
    shop = Shop()
    touches = [shop.touch(visitor, f"{visitor}-{number}") for visitor in ("x", "y", "z") for number in range(4)]
    links = [shop.identify(visitor, "u") for visitor in ("x", "y", "z")]
    rules = Rules(max_touches=3, max_visitors=2)
    assert sources(rules, [*touches, shop.order("x")]) == ["x-0", "x-2", "x-3"]
    assert sources(rules, [*touches, *links, shop.order("backend", user="u")]) == ["y-0", "z-2", "z-3"]
    again = shop.identify("x", "u")
    assert sources(rules, [*touches, *links, again, shop.order("backend", user="u")]) == ["x-0", "z-2", "z-3"]


@pytest.mark.parametrize(("after", "decided"), [(2 * HOUR, 1), (2 * HOUR + 1, 2), (-3 * YEAR, 1)])
def test_an_order_is_decided_once_while_it_is_remembered(after: int, decided: int) -> None:
    shop = Shop()
    records = [shop.order("a")]
    shop.now += after
    outcome = asyncio.run(attributed(Rules(order_memory=2 * HOUR), [*records, shop.order("b")]))
    assert len(outcome.derived) == decided


@pytest.mark.parametrize(
    ("worth", "asked", "reversed_"),
    [
        (40, [10, None], [10, 30]),
        (40, [10, 40], [10, 30]),
        (40, [-10, 0, 5], [10, 5]),
        (-30, [10, -40], [-10, -20]),
        (0.3, [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1]),
        (0, [None, 10], [0]),
    ],
)
def test_refunds_reverse_their_amount_but_never_more_than_the_rest(
    worth: float, asked: list[float | None], reversed_: list[float]
) -> None:
    shop = Shop()
    records = [shop.order("a", revenue=worth), *(shop.refund("o-1", each) for each in asked)]
    outcome = asyncio.run(attributed(Rules(), records))
    agrees(outcome.derived, Reference(Rules(), [record.decode() for record in records]))
    assert [msgspec.json.decode(body)["value"]["revenue"] for body in outcome.derived[1:]] == reversed_


# The ways in which the consumer gets its work


@CONFLICTS
@given(rules=RULES, happenings=happenings(ANY_CLOCK), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9))
@examples(25)
def test_the_division_into_steps_changes_nothing(
    rules: Rules, happenings: list[dict[str, Any]], sizes: list[int]
) -> None:
    records = play(happenings)
    at_once, cut, one_by_one = (
        asyncio.run(attributed(rules, records, each)) for each in (ALL, cycle(sizes), repeat(1))
    )
    assert at_once == cut == one_by_one


@CONFLICTS
@given(rules=RULES, happenings=happenings(STEADY), skews=SKEWS)
@examples(15)
def test_late_work_gives_the_same_bytes_as_timely_work(
    rules: Rules, happenings: list[dict[str, Any]], skews: list[int]
) -> None:
    """The consumer reads each record at once. Its clock is ten days off now and then."""
    records = play({**each, "skew": skew} for each, skew in zip(happenings, cycle(skews), strict=False))

    async def at_the_time(folder: str) -> list[bytes]:
        clock = [START]
        async with attributing(Path(folder), rules) as attribution:
            async with running(attribution.backend, attribution.consumer, now=lambda: clock[0]) as (status,):
                for record in records:
                    clock[0] = record.at
                    position = await attribution.append([record])
                    await until(partial(done, status, position))
            return await attribution.derived()

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(at_the_time(folder)) == asyncio.run(attributed(rules, records)).derived


def done(status: ConsumerStatus, position: int) -> bool:
    return status.position >= position


class Faltering:
    """A transaction whose store fails after `operations` operations."""

    def __init__(self, state: State, operations: int) -> None:
        self._state = state
        self._left = operations

    def __getattr__(self, name: str) -> Any:
        if name != "now":
            if not self._left:
                raise Unavailable("the store is away")
            self._left -= 1
        return getattr(self._state, name)


class HalfWay(Consumer):
    """Wraps a consumer. Some steps fail in the middle, or at their end before the commit."""

    def __init__(self, consumer: Consumer, max_records: int, chance: random.Random) -> None:
        self.name = consumer.name
        self.start = consumer.start
        self.max_records = max_records
        self._consumer = consumer
        self._chance = chance

    async def process(self, records: Sequence[Record], step: Step) -> None:
        fails = self._chance.random() < 0.3
        state = Faltering(step.state, self._chance.randrange(4 * len(records))) if fails else step.state
        inner = Step(cast("State", state))
        await self._consumer.process(records, inner)
        if fails:
            raise Unavailable("the store is away")
        step.done = inner.done
        for record in inner.records:
            step.append(record)


@pytest.mark.logs("sent again with another value", "is in another currency", "attribution: the store is away")
@given(rules=RULES, happenings=happenings(ANY_CLOCK), max_records=st.integers(1, 12), seed=st.integers(0, 1 << 32))
@examples(25)
def test_unfinished_steps_leave_nothing_behind(
    rules: Rules, happenings: list[dict[str, Any]], max_records: int, seed: int
) -> None:
    """The store fails, and the daemon is stopped at random moments and started again."""
    records, chance = play(happenings), random.Random(seed)

    async def disturbed(folder: str) -> list[bytes]:
        async with attributing(Path(folder), rules) as attribution:
            await append(attribution.backend, records)
        for _ in range(3):
            async with attributing(Path(folder), rules) as attribution:
                consumer = HalfWay(attribution.consumer, max_records, chance)
                async with running(attribution.backend, consumer, now=lambda: LONG_AFTER, patience=0):
                    for _ in range(chance.randrange(60)):
                        await asyncio.sleep(0)
        async with attributing(Path(folder), rules) as attribution:
            consumer = HalfWay(attribution.consumer, max_records, chance)
            async with running(attribution.backend, consumer, now=lambda: LONG_AFTER):
                pass
            return await attribution.derived()

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(disturbed(folder)) == asyncio.run(attributed(rules, records)).derived
