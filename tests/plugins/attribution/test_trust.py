"""Records of a public key never change the attribution of signed orders, compared byte by byte."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from tests.support.attribution import START, Attribution, Shop, agrees, attributing
from tests.support.attribution_reference import HOUR, Reference, Rules

LONG_AFTER = START + 1000 * 24 * HOUR
CONFLICTS = pytest.mark.logs("sent again with another value", "is in another currency", "came before its order")

# Records of the shop and of strangers

OWN = st.sampled_from(["thief-1", "thief-2"])
USERS = st.sampled_from([None, "u", "u", "v", "thief"])
ORDER_IDS = st.sampled_from(["o-1", "o-1", "o-2", "o-3"])
DATA = st.fixed_dictionaries(
    {"order_id": ORDER_IDS},
    optional={
        "revenue": st.sampled_from([40, 12.5, 1000, 0, -30, 1e300]),
        "total": st.sampled_from([50, 33.33]),
        "refund_id": st.sampled_from(["r-1", "r-2"]),
        "currency": st.sampled_from(["EUR", "eur", "CZK"]),
    },
)
CAMPAIGNS = st.sampled_from([None, "thief", "newsletter"])
ORDERS = ["Order Completed", "Order Completed", "Order Refunded", "Order Refunded", "Order Cancelled"]


class Sent(NamedTuple):
    """A record of the shop or of a stranger, `pause` milliseconds after the previous one."""

    stranger: bool
    what: str
    visitor: str
    user: str | None
    data: dict[str, Any]
    source: str | None
    pause: int
    signed: bool
    linked: bool


PAUSES = st.sampled_from([0, 0, 0, 1, HOUR])
STRANGERS = st.builds(
    Sent,
    stranger=st.just(True),
    what=st.sampled_from([*ORDERS, "Page View", "identify", "identify"]),
    visitor=OWN,
    user=USERS,
    data=DATA,
    source=CAMPAIGNS,
    pause=PAUSES,
    signed=st.just(False),
    linked=st.just(False),  # with links = "signed"
)
SHOPS = st.builds(
    Sent,
    stranger=st.just(False),
    what=st.sampled_from([*ORDERS, "Page View", "Page View", "identify", "identify"]),
    visitor=st.sampled_from(["a", "a", "b"]),
    user=st.sampled_from([None, "u", "u", "v"]),
    data=DATA,
    source=st.sampled_from([None, "search", "mail"]),
    pause=PAUSES,
    signed=st.sampled_from([True, True, False]),
    linked=st.just(False),
)
JOURNALS = st.lists(STRANGERS | SHOPS, max_size=50) | st.lists(STRANGERS | SHOPS, min_size=20, max_size=50)


def play(journal: Sequence[Sent]) -> list[Record]:
    shop = Shop()
    records = []
    for sent in journal:
        shop.now += sent.pause
        context = {"campaign": {"source": sent.source}} if sent.source is not None else {}
        if sent.what == "identify":
            linked = sent.signed and sent.user is not None
            records.append(shop.identify(sent.visitor, sent.user, context=context, signed=sent.signed, linked=linked))
        else:
            data = sent.data if sent.what in ORDERS else {}
            records.append(
                shop.event(sent.what, sent.visitor, data, user=sent.user, context=context, signed=sent.signed)
            )
    return records


async def derived(rules: Rules, records: Sequence[Record]) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules) as attribution:
            if records:
                await attribution.append(records)
            await attribution.work_off(repeat(1000), LONG_AFTER)
            return await attribution.derived()


def of_signed_orders(bodies: Sequence[bytes], records: Sequence[Record]) -> list[bytes]:
    """The attributions of the signed orders among these records, and their reversals."""
    signed = {record["id"] for record in (each.decode() for each in records) if record["signed"]}
    ids, found = set(), []
    for body in bodies:
        record = msgspec.json.decode(body)
        if record.get("orderEventId") in signed:
            ids.add(record["id"])
            found.append(body)
        elif record.get("attributionId") in ids:
            found.append(body)
    return found


@CONFLICTS
@given(JOURNALS, st.sampled_from([2 * HOUR, 9600 * HOUR]), st.sampled_from([2, 100]))
def test_no_record_of_a_stranger_changes_the_attribution_of_signed_orders(
    journal: list[Sent], order_memory: int, max_visitors: int
) -> None:
    """With orders = "signed" nothing else is derived. With orders = "any" signed orders give the same bytes."""
    records = play(journal)
    own = [record for record, sent in zip(records, journal, strict=True) if not sent.stranger]
    rules = Rules(orders="signed", order_memory=order_memory, max_visitors=max_visitors)
    without = asyncio.run(derived(rules, own))
    assert asyncio.run(derived(rules, records)) == without == of_signed_orders(without, own)
    any_orders = asyncio.run(derived(Rules(order_memory=order_memory, max_visitors=max_visitors), records))
    assert of_signed_orders(any_orders, own) == without


DAY = 24 * HOUR
OF_ONE_ORDER = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(ORDERS),
            "visitor": st.sampled_from(["a", "b"]),
            "data": st.fixed_dictionaries(
                {"order_id": st.just("o-1")},
                optional={"revenue": st.sampled_from([40, 10]), "refund_id": st.just("r-1")},
            ),
            "user": st.sampled_from([None, "u"]),
            "signed": st.booleans(),
        }
    ),
    min_size=1,
    max_size=2,
)


@CONFLICTS
@given(ahead=OF_ONE_ORDER, right=OF_ONE_ORDER, later=OF_ONE_ORDER)
def test_what_a_daemon_with_a_clock_years_ahead_received_is_known_as_long_as_it_counts(
    ahead: list[dict[str, Any]], right: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    """Its clock is set back, or it is another daemon's. The work itself is done at the right time."""
    shop, parts = Shop(), []
    times = (START + 2000 * DAY, START), (START, START), (START + 1500 * DAY, START + 1500 * DAY)
    for (shop.now, now), events in zip(times, (ahead, right, later), strict=True):
        parts.append((now, [shop.event(**each) for each in events]))

    async def decided(folder: str) -> list[bytes]:
        async with attributing(Path(folder), Rules()) as attribution:
            for now, records in parts:
                await attribution.backend.journal.commit(records, attribution.backend.store.begin(now))
                await attribution.work_off(repeat(10), now)
            return await attribution.derived()

    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(Rules(), [record.decode() for _, records in parts for record in records])
        agrees(asyncio.run(decided(folder)), reference)


# Examples


async def worked_off(folder: Path, records: Sequence[Record], rules: Rules | None = None) -> Attribution:
    """The closed plugin after these records. The reference must agree."""
    rules = rules or Rules()
    async with attributing(folder, rules) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(1000), LONG_AFTER)
        agrees(await attribution.derived(), Reference(rules, [record.decode() for record in records]))
        return attribution


async def told(folder: Path, records: Sequence[Record], rules: Rules | None = None) -> list[tuple[str, float | None]]:
    """The amounts of derived records, each with the credited source of an attribution, or the reason of a reversal."""
    rules = rules or Rules()
    async with attributing(folder, rules) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(1000), LONG_AFTER)
        bodies = await attribution.derived()
        agrees(bodies, Reference(rules, [record.decode() for record in records]))
    lines = []
    for body in map(msgspec.json.decode, bodies):
        if body["type"] == "attribution":
            touchpoint = body["touchpoint"]
            lines.append(("direct" if touchpoint is None else touchpoint["source"], body["value"]["revenue"]))
        else:
            lines.append((body["reason"], body["value"]["revenue"]))
    return lines


@pytest.mark.logs("sent again with another value")
async def test_a_signed_order_supersedes_a_public_one_and_never_the_other_way_round(tmp_path: Path) -> None:
    shop = Shop()
    touches = [shop.touch("thief", "thief"), shop.touch("a", "mail")]
    public, signed = shop.order("thief", revenue=1000), shop.order("a", signed=True)
    assert await told(tmp_path / "1", [*touches, public, signed, shop.order("thief", revenue=1000)]) == [
        ("thief", 1000),
        ("superseded", 1000),
        ("mail", 40),
    ]
    assert await told(tmp_path / "2", [*touches, signed, public, shop.order("a", signed=True)]) == [("mail", 40)]


@pytest.mark.logs("sent again with another value")
async def test_a_signed_order_with_an_old_time_does_not_let_the_public_one_be_decided_again(tmp_path: Path) -> None:
    shop = Shop()
    public = shop.order("a", revenue=1000)
    shop.now -= 500 * 24 * HOUR
    signed = shop.order("a", signed=True)
    shop.now += 500 * 24 * HOUR + HOUR
    again = [shop.order("a", revenue=1000), shop.refund(revenue=10, signed=True)]
    shop.now += 401 * 24 * HOUR
    forgotten = shop.order("a", revenue=7, signed=True)
    assert await told(tmp_path, [public, signed, *again, forgotten]) == [
        ("direct", 1000), ("superseded", 1000), ("direct", 40), ("refund", 10), ("direct", 7),
    ]  # fmt: skip


async def test_the_person_of_a_signed_order_with_an_old_time_is_known_as_long_as_the_order(tmp_path: Path) -> None:
    shop, day = Shop(), 24 * HOUR
    shop.now = START + 2000 * day
    public = shop.order("thief")
    shop.now = START
    signed = shop.order("a", signed=True)
    shop.now = START + 1500 * day
    refund = shop.refund(revenue=10, signed=True)
    async with attributing(tmp_path, Rules()) as attribution:
        await attribution.append([public, signed])
        await attribution.work_off(repeat(10), START)
        await attribution.append([refund])
        await attribution.work_off(repeat(10), shop.now)
        reversal = msgspec.json.decode((await attribution.derived())[-1])
    assert (reversal["reason"], reversal["anonymousId"], reversal.get("erased")) == ("refund", "a", None)


@pytest.mark.parametrize("later", ["refund", "public order"])
async def test_a_refund_waits_until_it_is_too_old_also_if_the_clock_was_set_back(tmp_path: Path, later: str) -> None:
    shop = Shop()
    shop.now = START + 2000 * DAY
    first = shop.refund(revenue=10, signed=True)
    shop.now = START
    second = shop.refund(revenue=5) if later == "refund" else shop.order("a")
    shop.now = START + 1500 * DAY
    signed = shop.order("a", signed=True)
    async with attributing(tmp_path, Rules()) as attribution:
        await attribution.append([first, second])
        await attribution.work_off(repeat(10), START)
        await attribution.append([signed])
        await attribution.work_off(repeat(10), shop.now)
        agrees(await attribution.derived(), Reference(Rules(), [each.decode() for each in (first, second, signed)]))
        reversal = msgspec.json.decode((await attribution.derived())[-1])
    assert (reversal["reason"], reversal["orderEventId"]) == ("refund", signed.decode()["id"])


async def test_a_stranger_reverses_no_signed_order(tmp_path: Path) -> None:
    shop = Shop()
    cancel = shop.event("Order Cancelled", "thief", {"order_id": "o-1"})
    early, late = shop.refund(), shop.refund(revenue=10)
    order, own = shop.order("a", signed=True), shop.refund(revenue=5, signed=True)
    assert await told(tmp_path, [early, order, late, cancel, own]) == [("direct", 40), ("refund", 5)]


async def test_signed_refunds_of_a_public_order_apply_again_to_the_signed_one(tmp_path: Path) -> None:
    """Signed refunds from before and after the public order apply again. A stranger's refund does not."""
    shop = Shop()
    records = [
        shop.refund(revenue=5, signed=True),
        shop.order("a"),
        shop.refund(revenue=10, signed=True),
        shop.refund(revenue=7),
        shop.order("a", signed=True),
    ]
    assert await told(tmp_path, records) == [
        ("direct", 40), ("refund", 5), ("refund", 10), ("refund", 7), ("superseded", 18),
        ("direct", 40), ("refund", 5), ("refund", 10),
    ]  # fmt: skip


@pytest.mark.logs("came before its order")
async def test_a_stranger_uses_up_neither_waiting_refunds_nor_refund_ids_of_the_shop(tmp_path: Path) -> None:
    shop = Shop()

    def refund(revenue: float, refund_id: str, *, signed: bool = False) -> Record:
        data = {"order_id": "o-1", "revenue": revenue, "refund_id": refund_id}
        return shop.event("Order Refunded", "backend", data, signed=signed)

    flood = [refund(1, f"r-{number}") for number in range(30)]
    own = [refund(2, "r-1", signed=True), refund(2, "r-1", signed=True)]
    signed = shop.order("a", signed=True)
    assert await told(tmp_path / "waiting", [*flood, *own, signed]) == [("direct", 40), ("refund", 2)]
    found = await told(tmp_path / "public", [shop.order("a", revenue=100), *flood, *own])
    assert found == [("direct", 100), *[("refund", 1)] * 30, ("refund", 2)]


async def test_an_order_without_a_rest_is_superseded_with_zero(tmp_path: Path) -> None:
    shop = Shop()
    records = [shop.order("a"), shop.refund(), shop.order("a", signed=True)]
    assert await told(tmp_path, records) == [("direct", 40), ("refund", 40), ("superseded", 0), ("direct", 40)]


async def test_with_signed_orders_only_public_orders_decide_nothing(tmp_path: Path) -> None:
    shop = Shop()
    records = [shop.order("a"), shop.refund(), shop.order("b", "o-2"), shop.refund(signed=True)]
    records += [shop.order("a", signed=True), shop.order("c", None), shop.order("a")]
    attribution = await worked_off(tmp_path, records, Rules(orders="signed"))
    assert attribution.counted("orders") == {"untrusted": 4, "direct": 1}
    assert attribution.counted("reversals") == {"untrusted": 1, "waiting": 1, "reversed": 1}


async def test_an_identify_record_without_a_link_joins_no_visitors(tmp_path: Path) -> None:
    shop = Shop()
    touch = shop.touch("thief", "thief")
    order = shop.order("a", user="u", signed=True)
    for linked, source in ((False, "direct"), (True, "thief"), (None, "thief")):
        folder = tmp_path / str(linked)
        assert await told(folder, [touch, shop.identify("thief", "u", linked=linked), order]) == [(source, 40)]


async def test_an_older_record_is_signed_if_its_endpoint_is_for_servers(tmp_path: Path) -> None:
    shop = Shop()
    records = [shop.order("a"), shop.order("b", signed=True)]
    older = []
    for record in records:
        members = record.decode()
        del members["signed"]
        older.append(Record(record.type, record.at, msgspec.json.encode(members)))
    async with attributing(tmp_path, Rules()) as attribution:
        await attribution.append(older)
        await attribution.work_off(repeat(10), LONG_AFTER)
        assert attribution.counted("reversals") == {"superseded": 1}


async def test_amounts_over_ten_to_the_twelfth_do_not_count(tmp_path: Path) -> None:
    shop = Shop()
    records = [
        shop.event("Order Completed", "a", {"order_id": "o-1", "revenue": 1e300, "total": 50}),
        shop.refund(revenue=10**12 + 1),
        shop.event("Order Completed", "a", {"order_id": "o-2", "revenue": 10**12}),
        shop.event("Order Completed", "a", {"order_id": "o-3", "revenue": -1e13, "total": 10**30}),
    ]
    async with attributing(tmp_path, Rules()) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(10), LONG_AFTER)
        bodies = [*map(msgspec.json.decode, await attribution.derived())]
        assert [body["value"] for body in bodies] == [
            {"revenue": None, "total": 50, "currency": None},
            {"revenue": 10**12, "total": None, "currency": None},
            {"revenue": None, "total": None, "currency": None},
        ]
        assert [body.get("notCounted") for body in bodies] == [["revenue"], None, ["revenue", "total"]]
        assert attribution.amounts_ignored() == 4
        assert attribution.counted("reversals") == {"no_amount": 1}
