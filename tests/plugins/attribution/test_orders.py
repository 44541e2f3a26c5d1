"""The attribution of an order and its reversals: values, ids, credited touches, and the decided order between them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.plugins.attribution.amounts import amount_of_refund
from ingestd.plugins.attribution.journeys import Candidates, Ignored
from ingestd.plugins.attribution.marks import DecidedOrder, Marks, Order, Refund, refund_id_digest
from ingestd.plugins.attribution.models import MODELS, Model
from ingestd.plugins.attribution.orders import MAX_REFUND_IDS, attribution_id, decide, reverse, supersede
from ingestd.plugins.attribution.people import Whom
from ingestd.plugins.attribution.touches import Touch
from ingestd.plugins.sources import Channels, ClickId
from tests.support.backends import sqlite_backend

DAY = 86_400_000
WEEK = 7 * DAY
RECEIVED = 1_790_000_000_000
NOTHING = Candidates([], [], 0)
WHOM = Whom("visitor", "user", {"eventId": "event-3", "source": "s"})


def order(
    revenue: float | None = None, total: float | None = None, *, currency: str | None = "EUR", **further: Any
) -> Order:
    """An order received a second after it happened."""
    completed = Order(
        tenant="shop",
        event_id="order-event",
        position=100,
        at=RECEIVED - 1000,
        received_at=RECEIVED,
        order_id="o-1",
        anonymous_id="visitor",
        user_id="user",
        revenue=revenue,
        total=total,
        currency=currency,
    )
    return replace(completed, **further)


def refund(
    revenue: float | None = None,
    total: float | None = None,
    *,
    event_id: str = "refund-1",
    refund_id: str | None = None,
    signed: bool = False,
) -> Refund:
    amount = amount_of_refund((revenue, total), None)
    return Refund("shop", "o-1", event_id, RECEIVED + DAY, "refund", amount, None, refund_id, signed)


def cancellation(event_id: str = "cancel") -> Refund:
    return Refund("shop", "o-1", event_id, RECEIVED + DAY, "cancel", None, None, None)


def touch(position: int, age: int, **further: Any) -> tuple[Touch, str]:
    campaign = Touch(position, RECEIVED - 1000 - age, f"event-{position}", None, "s", None, None, None, None, None)
    return replace(campaign, **further), "visitor"


def candidates(*ages: int) -> Candidates:
    return Candidates([touch(number, age) for number, age in enumerate(ages, 1)], [], 0)


def decided(
    completed: Order, found: Candidates = NOTHING, model: Model = "last_touch", half_life: int = WEEK
) -> tuple[dict[str, Any], DecidedOrder]:
    record, mark, _ = decide(completed, found, Channels(()), model=model, window=WEEK, half_life=half_life)
    assert (record.type, record.at, record.position) == ("attribution", completed.received_at, 0)
    return record.decode(), mark


def reversed_(asked: Refund, mark: DecidedOrder) -> tuple[dict[str, Any], DecidedOrder]:
    found = reverse(asked, mark, WHOM)
    assert found is not None
    record, after = found
    assert (record.type, record.at) == ("attribution_reversal", asked.received_at)
    return record.decode(), after


def amount(record: dict[str, Any]) -> Decimal:
    value = record["value"]
    assert None in {value["revenue"], value["total"]}
    return Decimal(str(value["revenue"] if value["revenue"] is not None else value["total"]))


# Attributions


def test_an_attribution_has_all_its_members() -> None:
    excluded, _ = touch(3, DAY, source="paypal")
    found = Candidates(
        [touch(1, 2 * DAY, session_id="s-1", medium="cpc", name="n", term="t", content="c",
        click=ClickId("gclid", "7")), touch(4, 0, source=None, dispatch_id="mail-7")],
        [Ignored(excluded, "other", "excluded_source")],
        3,
    )  # fmt: skip
    record, mark = decided(order(40, 50.5), found, "linear")
    at = RECEIVED - 1000
    first = {
        "eventId": "event-1",
        "at": format_time(at - 2 * DAY),
        "anonymousId": "visitor",
        "sessionId": "s-1",
        "source": "s",
        "medium": "cpc",
        "name": "n",
        "term": "t",
        "content": "c",
        "dispatchId": None,
        "kind": "campaign",
        "channel": Channels(()).of("s", "cpc", "n"),
        "clickId": {"type": "gclid", "id": "7"},
    }
    nothing = dict.fromkeys(("sessionId", "source", "medium", "name", "term", "content"))
    second = {
        **nothing, "eventId": "event-4", "at": format_time(at), "anonymousId": "visitor", "dispatchId": "mail-7",
        "kind": "dispatch", "channel": Channels(()).of(None, None, None), "clickId": None,
    }  # fmt: skip
    halves = [{"eventId": "event-1", "weight": 0.5}, {"eventId": "event-4", "weight": 0.5}]
    decay = record["credits"].pop("time_decay")
    assert record == {
        "id": attribution_id(order()),
        "type": "attribution",
        "tenant": "shop",
        "decidedAt": format_time(RECEIVED),
        "orderId": "o-1",
        "orderEventId": "order-event",
        "orderAt": format_time(at),
        "anonymousId": "visitor",
        "userId": "user",
        "model": "linear",
        "windowSeconds": 604_800,
        "value": {"revenue": 40, "total": 50.5, "currency": "EUR"},
        "touchpoint": second,
        "credits": {
            "last_touch": [{"eventId": "event-4", "weight": 1.0}],
            "first_touch": [{"eventId": "event-1", "weight": 1.0}],
            "linear": halves,
            "position_based": halves,
        },
        "touchpoints": [first, second],
        "ignored": [
            {"eventId": "event-3", "at": format_time(at - DAY), "anonymousId": "other", "reason": "excluded_source"}
        ],
        "leftOut": 3,
    }
    assert [each["eventId"] for each in decay] == ["event-1", "event-4"]
    assert mark.touches == [("event-1", 2 * DAY), ("event-4", 0)]


def test_an_order_without_touches() -> None:
    record, _ = decided(order(40))
    assert record["touchpoint"] is None
    assert record["touchpoints"] == record["ignored"] == []
    assert record["credits"] == {model: [] for model in MODELS}


def test_the_newest_twenty_ignored_touches_are_listed() -> None:
    ignored = [Ignored(touch(number, 50 * DAY - number)[0], "visitor", "before_window") for number in range(50)]
    record, _ = decided(order(40), Candidates([], ignored, 0))
    assert [each["eventId"] for each in record["ignored"]] == [f"event-{number}" for number in range(30, 50)]


@pytest.mark.parametrize(
    ("model", "ages", "credited"),
    [
        ("last_touch", (3, 2, 1), 3),
        ("last_touch", (1, 1, 1), 3),
        ("first_touch", (3, 2, 1), 1),
        ("first_touch", (1, 1, 1), 1),
        ("linear", (3, 2, 1), 3),
        ("position_based", (3, 2, 1), 3),
        ("position_based", (1, 1), 2),
        ("time_decay", (3, 2, 1), 3),
        ("time_decay", (2, 1, 1), 3),
        ("time_decay", (0, 0), 2),
    ],
)
def test_of_equal_shares_the_newest_is_credited(model: Model, ages: Sequence[int], credited: int) -> None:
    record, _ = decided(order(40), candidates(*(age * DAY for age in ages)), model)
    assert record["touchpoint"]["eventId"] == f"event-{credited}"
    assert record["model"] == model


@given(st.sampled_from(MODELS), st.lists(st.integers(0, WEEK), min_size=1, max_size=200))
def test_the_credited_touch_has_the_largest_share(model: Model, ages: list[int]) -> None:
    record, _ = decided(order(40), candidates(*sorted(ages, reverse=True)), model)
    shares = {each["eventId"]: each["weight"] for each in record["credits"][model]}
    assert shares[record["touchpoint"]["eventId"]] == max(shares.values())
    for parts in record["credits"].values():
        assert abs(sum(each["weight"] for each in parts) - 1) < 1e-9
        assert all(each["weight"] > 0 for each in parts)


# Ids


def test_an_order_id_identifies_the_order() -> None:
    identity = attribution_id(order(40))
    assert UUID(identity).version == 5
    same = order(99, user_id=None, anonymous_id="x", event_id="other", at=1, received_at=2, position=3, currency=None)
    assert attribution_id(same) == identity
    assert decided(order(40))[0]["id"] == decided(order(41), candidates(DAY))[0]["id"] == identity
    others = [
        order(order_id="o-2"),
        order(order_id="O-1"),
        order(tenant="other"),
        order(order_id=None),
        order(order_id=None, event_id="o-1"),
        order(order_id=None, event_id="order-event-2"),
    ]
    assert len({identity, *map(attribution_id, others)}) == 1 + len(others)


def test_each_event_without_an_order_id_is_one_order() -> None:
    identity = attribution_id(order(order_id=None))
    assert attribution_id(order(50, order_id=None, at=1)) == identity
    assert attribution_id(order(order_id=None, event_id="another")) != identity


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_tenant_and_order_id_are_never_confused(tenant: str, number: str, tenant_2: str, number_2: str) -> None:
    same = (tenant, number) == (tenant_2, number_2)
    ids = {attribution_id(order(tenant=t, order_id=n)) for t, n in ((tenant, number), (tenant_2, number_2))}
    assert len(ids) == (1 if same else 2)


def test_ids_with_equal_concatenations_differ() -> None:
    assert attribution_id(order(tenant="a", order_id="bc")) != attribution_id(order(tenant="ab", order_id="c"))
    assert attribution_id(order(tenant="1", order_id="2:x")) != attribution_id(order(tenant="12", order_id=":x"))


# Reversals


def test_a_reversal_refers_to_the_same_touches() -> None:
    attribution, mark = decided(order(40, 50), candidates(3 * DAY, DAY, 0), "time_decay", half_life=DAY)
    asked = refund(10)
    record, after = reversed_(asked, mark)
    identity = record.pop("id")
    assert UUID(identity).version == 5
    assert record == {
        "type": "attribution_reversal",
        "tenant": "shop",
        "decidedAt": format_time(asked.received_at),
        "attributionId": attribution["id"],
        **{name: attribution[name] for name in ("orderId", "orderEventId", "orderAt", "anonymousId", "userId")},
        "reason": "refund",
        "value": {"revenue": 10, "total": None, "currency": "EUR"},
        "cause": "refund-1",
        "model": "time_decay",
        "touchpoint": {"eventId": "event-3", "source": "s"},
        "credits": attribution["credits"],
    }
    assert (after.reversed, after.is_reversed, after.reversals, after.public_reversals) == ("10", False, 1, 1)
    assert replace(after, reversed="0", reversals=0, public_reversals=0) == mark
    assert reversed_(asked, mark)[0]["id"] == identity
    assert reversed_(refund(10, event_id="refund-2"), mark)[0]["id"] != identity


@pytest.mark.parametrize(
    ("completed", "asked", "value"),
    [
        # The refund's revenue, or else its total, or else the rest of the order.
        ((40, 50), (10, 12), {"revenue": 10}),
        ((40, 50), (None, 12), {"revenue": 12}),
        ((40, 50), (None, None), {"revenue": 40}),
        # It is in the same member as the value of the order.
        ((None, 50), (10, 12), {"total": 10}),
        ((None, 50), (None, 12), {"total": 12}),
        ((None, 50), (None, None), {"total": 50}),
        # Never more than the rest of the order. The refund's sign does not count.
        ((40, 50), (45, None), {"revenue": 40}),
        ((40, 50), (1e12, None), {"revenue": 40}),
        ((40, 50), (-10, None), {"revenue": 10}),
        ((40, 50), (-45.5, None), {"revenue": 40}),
        ((40.25, 50), (None, None), {"revenue": 40.25}),
        ((40, None), (0.1, None), {"revenue": 0.1}),
        # An order below zero is reversed towards zero.
        ((-40, 50), (10, None), {"revenue": -10}),
        ((-40, 50), (-10, None), {"revenue": -10}),
        ((-40, 50), (None, None), {"revenue": -40}),
        # Zero is a value. An order without a value has a refund without a value.
        ((0, 50), (None, None), {"revenue": 0}),
        ((0, 50), (10, None), {"revenue": 0}),
        ((None, None), (10, 12), {}),
        ((None, None), (None, None), {}),
    ],
)
def test_the_value_of_a_refund(
    completed: tuple[float | None, float | None], asked: tuple[float | None, float | None], value: dict[str, float]
) -> None:
    _, mark = decided(order(*completed))
    record, _ = reversed_(refund(*asked), mark)
    assert record["value"] == {"revenue": None, "total": None, "currency": "EUR", **value}


def test_whole_amounts_have_no_point() -> None:
    _, mark = decided(order(40.0))
    record, _, _ = decide(order(40.0), NOTHING, Channels(()), model="linear", window=WEEK, half_life=WEEK)
    found = reverse(refund(10.0), mark, WHOM)
    assert found is not None
    assert b'"value":{"revenue":10,' in found[0].body
    assert b'"value":{"revenue":40.0,' in record.body  # the number as the caller wrote it


def test_a_refund_of_zero_reverses_nothing() -> None:
    _, mark = decided(order(40))
    assert reverse(refund(0), mark, WHOM) is None
    assert reverse(refund(None, 0), mark, WHOM) is None
    assert reverse(refund(0, 10), mark, WHOM) is None  # its revenue counts, not its total


def test_a_cancellation_reverses_the_rest_and_a_second_one_nothing() -> None:
    _, mark = decided(order(40))
    _, mark = reversed_(refund(10), mark)
    record, mark = reversed_(cancellation(), mark)
    assert (record["reason"], record["value"]["revenue"], record["cause"]) == ("cancel", 30, "cancel")
    assert (mark.is_reversed, mark.reversals) == (True, 2)
    assert reverse(cancellation("cancel-2"), mark, WHOM) is None
    assert reverse(refund(5, event_id="refund-2"), mark, WHOM) is None


@pytest.mark.parametrize("completed", [order(), order(0)], ids=["no value", "zero"])
@pytest.mark.parametrize("asked", [refund(), cancellation()], ids=["refund", "cancellation"])
def test_an_order_worth_nothing_is_reversed_once(completed: Order, asked: Refund) -> None:
    _, mark = decided(completed, candidates(DAY))
    record, mark = reversed_(asked, mark)
    assert record["credits"]["last_touch"] == [{"eventId": "event-1", "weight": 1.0}]
    assert mark.is_reversed
    assert reverse(replace(asked, event_id="another"), mark, WHOM) is None


def test_tenths_sum_exactly() -> None:
    _, mark = decided(order(0.3))
    first, mark = reversed_(refund(0.1), mark)
    second, mark = reversed_(refund(0.2, event_id="refund-2"), mark)
    assert (first["value"]["revenue"], second["value"]["revenue"]) == (0.1, 0.2)
    assert (mark.reversed, mark.is_reversed) == ("0.3", True)
    _, mark = decided(order(0.3))
    _, mark = reversed_(refund(0.1), mark)
    rest, _ = reversed_(cancellation(), mark)
    assert rest["value"]["revenue"] == 0.2


CENTS = st.integers(-(10**11), 10**11).map(lambda cents: cents / 100)
REFUNDS = st.lists(st.tuples(st.none() | CENTS, st.none() | CENTS, st.booleans()), max_size=8)


@given(CENTS, st.booleans(), REFUNDS)
def test_reversals_never_sum_to_more_than_the_order(worth: float, as_total: object, refunds: list[Any]) -> None:
    _, mark = decided(order(None, worth) if as_total else order(worth, 7))
    whole, sum_, count = Decimal(str(worth)), Decimal(0), 0
    for number, (revenue, total, is_cancel) in enumerate(refunds):
        left = abs(whole) - abs(sum_)
        event_id = f"refund-{number}"
        sent = cancellation(event_id) if is_cancel else refund(revenue, total, event_id=event_id)
        found = reverse(sent, mark, WHOM)
        if found is None:
            assert mark.is_reversed or (revenue if revenue is not None else total) == 0
            continue
        record, mark = found
        part = amount(record.decode())
        assert part * whole >= 0
        asked = None if is_cancel else revenue if revenue is not None else total
        assert abs(part) == (left if asked is None else min(left, abs(Decimal(str(asked)))))
        sum_ += part
        count += 1
        assert abs(sum_) <= abs(whole)
        assert (Decimal(mark.reversed), mark.reversals) == (abs(sum_), count)
        assert mark.is_reversed == (sum_ == whole)


def test_amounts_of_many_digits_are_exact() -> None:
    whole = 10**12 - 0.125
    _, mark = decided(order(whole))
    for event_id in ("refund-1", "refund-2"):
        _, mark = reversed_(refund(0.1, event_id=event_id), mark)
    assert mark.reversed == "0.2"
    _, mark = reversed_(cancellation(), mark)
    assert mark.is_reversed
    assert Decimal(mark.reversed) == Decimal(str(whole))


@pytest.mark.parametrize(("after", "decided_at"), [(2 * DAY, 2 * DAY), (-2 * DAY, 0)])
def test_a_reversal_is_not_older_than_its_attribution(after: int, decided_at: int) -> None:
    """Whichever of the two the journal has first, since files may have them in any order."""
    _, mark = decided(order(40))
    found = reverse(replace(refund(10), received_at=RECEIVED + after), mark, WHOM)
    assert found is not None
    assert found[0].at == RECEIVED + decided_at
    assert found[0].decode()["decidedAt"] == format_time(RECEIVED + decided_at)


# Decided orders


def test_the_same_value_is_the_same_money() -> None:
    _, mark = decided(order(40, 50))
    assert mark.same_value(order(40.0, 50, event_id="again", at=1, user_id=None))
    assert mark.same_value(order(40, 50, currency=" eur"))
    for other in (order(41, 50), order(40, 51), order(40), order(None, 50), order(40, 50, currency="USD")):
        assert not mark.same_value(other)


def test_a_decided_order_contains_no_personal_data() -> None:
    completed = order(40, anonymous_id="ada-visitor", user_id="ada")
    found = Candidates([(touch(1, DAY, source="ada-campaign", session_id="ada-session")[0], "ada-phone")], [], 0)
    _, mark = decided(completed, found)
    assert "ada" not in repr(mark)


def test_a_decided_order_keeps_the_newest_refund_ids_and_is_bounded() -> None:
    """Refund ids sent with public keys never displace the refund ids of signed refunds."""
    _, mark = decided(order(1e9))
    digests = [refund_id_digest(f"r-{number}" * 1000) for number in range(MAX_REFUND_IDS + 5)]
    for number, digest in enumerate(digests):
        for signed in True, False:
            asked = refund(1, event_id=f"refund-{number}-{signed}", refund_id=f"{signed:d}{digest[1:]}", signed=signed)
            _, mark = reversed_(asked, mark)
    assert mark.refund_ids == [f"1{digest[1:]}" for digest in digests[5:]]
    assert mark.public_refund_ids == [f"0{digest[1:]}" for digest in digests[5:]]
    assert len(msgspec.json.encode(mark)) < 50_000


@pytest.mark.parametrize("members", [12, 13])
def test_a_decided_order_of_an_earlier_version_can_be_read(members: int) -> None:
    """An earlier version stored no refund ids, or not whether the order was signed."""
    _, mark = decided(order(40), candidates(DAY))
    read = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(mark)[:members]), type=DecidedOrder)
    assert read == replace(mark, signed=None, campaigns=None, event_id=None, order_at=None)
    # The sender is unknown. So no signed order supersedes it, and every refund may reverse it.
    assert not read.yields_to(order(40, signed=True))
    assert read.trusts(refund(10))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_only_an_event_at_least_as_trusted_reverses_an_order(*, signed: bool, asked: bool) -> None:
    _, mark = decided(order(40, signed=signed))
    assert mark.trusts(refund(10, signed=asked)) == (asked or not signed)
    assert mark.yields_to(order(40, signed=asked)) == (asked and not signed)


def test_a_refund_id_blocks_only_refunds_at_most_as_trusted() -> None:
    _, mark = decided(order(40))
    _, public = reversed_(refund(10, refund_id="r-1"), mark)
    assert public.has_reversed(refund(10, refund_id="r-1"))
    assert not public.has_reversed(refund(10, refund_id="r-1", signed=True))
    _, both = reversed_(refund(10, refund_id="r-1", signed=True), mark)
    assert both.has_reversed(refund(10, refund_id="r-1"))
    assert both.has_reversed(refund(10, refund_id="r-1", signed=True))


@pytest.mark.parametrize(
    ("worth", "asked", "left"), [(40, [], 40), (-40, [10], -30), (40, [40], 0), (0, [], 0), (None, [], None)]
)
def test_a_signed_order_reverses_the_rest_of_the_public_order(
    worth: float | None, asked: list[float], left: float | None
) -> None:
    sent = order(worth)
    record, mark = decided(sent, candidates(DAY))
    for each in asked:
        _, mark = reversed_(refund(each), mark)
    signed = order(50, event_id="signed-event", signed=True, received_at=RECEIVED + DAY)
    reversal = supersede(signed, mark, WHOM)
    body = reversal.decode()
    assert (body["reason"], body["cause"], body["attributionId"]) == ("superseded", "signed-event", record["id"])
    assert body["value"] == {"revenue": left, "total": None, "currency": "EUR"}
    assert body["credits"] == record["credits"]
    assert (reversal.at, body["decidedAt"]) == (RECEIVED + DAY, format_time(RECEIVED + DAY))
    ids = {attribution_id(sent), attribution_id(signed), body["id"]}
    assert len(ids) == 3


def test_the_same_refund_of_a_public_and_of_the_signed_order_are_two_records() -> None:
    _, public = decided(order(40))
    _, signed = decided(order(40, signed=True))
    asked = refund(10, signed=True)
    assert reversed_(asked, public)[0]["id"] != reversed_(asked, signed)[0]["id"]


async def test_a_decided_order_is_found_until_it_expires(tmp_path: Path) -> None:
    memory = 400 * DAY
    completed, nameless = order(40), order(7, order_id=None)
    async with sqlite_backend(tmp_path) as backend:
        state = backend.store.begin(RECEIVED)
        marks = Marks(state, memory)
        written = {}
        for each in (completed, nameless):
            assert await marks.of(each) is None
            _, written[each.order_id] = decided(each, candidates(DAY))
            await marks.set(each, written[each.order_id])
        await backend.journal.commit([Record("event", RECEIVED, b"{}")], state)
    async with sqlite_backend(tmp_path) as backend:
        # The time in the records counts, not the time of reading.
        marks = Marks(backend.store.begin(RECEIVED + memory + DAY), memory)
        assert await marks.of(completed) == await marks.find("shop", "o-1", "") == written["o-1"]
        assert await marks.of(nameless) == await marks.find("shop", None, "order-event") == written[None]
        assert await marks.of(order(41, event_id="again", received_at=RECEIVED + memory)) == written["o-1"]
        assert await marks.of(order(41, event_id="again", received_at=RECEIVED + memory + 1)) is None
        for other in (order(tenant="other"), order(order_id="o-2"), order(order_id=None, event_id="again")):
            assert await marks.of(other) is None
