"""Refunds and cancellations: which ones wait for their order, which ones count, and what they reverse."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.privacy import Person
from ingestd.api.store import key_digest
from ingestd.plugins.attribution.journeys import forget
from tests.support.attribution import START, Attribution, Shop, agrees, attributing
from tests.support.attribution_reference import HOUR, Reference, Rules
from tests.support.journals import append

LONG_AFTER = START + 200 * 8760 * HOUR
MEMORY = 9600 * HOUR

DATA = st.fixed_dictionaries(
    {},
    optional={
        "revenue": st.sampled_from([10, 12.5, 0.1, 0, -7]),
        "value": st.sampled_from([3, "3", True]),
        "products": st.lists(
            st.fixed_dictionaries(
                {"price": st.sampled_from([5, 0.1, 19.99])}, optional={"quantity": st.integers(0, 3)}
            ),
            max_size=2,
        ),
        "refund_id": st.sampled_from(["r-1", "r-2", " r-1", 1, "1"]),
        "currency": st.sampled_from(["EUR", "eur ", "CZK"]),
    },
)
REFUNDS = st.lists(st.tuples(st.sampled_from(["Order Refunded"] * 4 + ["Order Cancelled"]), DATA), max_size=10)


def refund(shop: Shop, order_id: Any = "o-1", key: str = "Order Refunded", **data: Any) -> Record:
    return shop.event(key, "backend", {"order_id": order_id, **data})


def cancellation(shop: Shop, order_id: Any = "o-1") -> Record:
    return refund(shop, order_id, "Order Cancelled")


def order(shop: Shop, order_id: Any = "o-1", total: float = 100, currency: str = "EUR") -> Record:
    return shop.event("Order Completed", "a", {"order_id": order_id, "total": total, "currency": currency})


async def reversals(attribution: Attribution) -> list[dict[str, Any]]:
    bodies = [msgspec.json.decode(body) for body in await attribution.derived()]
    return [body for body in bodies if body["type"] == "attribution_reversal"]


async def worked_off(
    folder: Path, records: Sequence[Record], rules: Rules | None = None, sizes: Iterable[int] = repeat(1000)
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The reversals derived from these records, and the counts of refunds by result. The reference must agree."""
    rules = rules or Rules()
    async with attributing(folder, rules) as attribution:
        await append(attribution.backend, records)
        await attribution.work_off(sizes, LONG_AFTER)
        reference = Reference(rules, [record.decode() for record in records])
        agrees(await attribution.derived(), reference)
        assert attribution.counted("reversals") == reference.reversals
        return await reversals(attribution), attribution.counted("reversals")


def totals(bodies: Iterable[dict[str, Any]]) -> list[float]:
    return [body["value"]["total"] for body in bodies]


# Refunds before their order


@pytest.mark.logs("is in another currency")
@given(refunds=REFUNDS, indexes=st.tuples(st.integers(0, 10), st.integers(0, 10)), size=st.integers(1, 12))
def test_refunds_reverse_the_same_whether_they_come_before_or_after_their_order(
    refunds: list[tuple[str, dict[str, Any]]], indexes: tuple[int, int], size: int
) -> None:
    shop = Shop()
    completed, sent = order(shop), [refund(shop, key=key, **data) for key, data in refunds]

    def reversed_with_order_at(index: int) -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            records = [*sent[:index], completed, *sent[index:]]
            bodies, _ = asyncio.run(worked_off(Path(folder), records, sizes=repeat(size)))
        return [(body["id"], body["cause"], body["reason"], body["value"], body["credits"]) for body in bodies]

    assert reversed_with_order_at(indexes[0]) == reversed_with_order_at(indexes[1])


@pytest.mark.parametrize("size", [1, 100])
async def test_waiting_refunds_are_applied_in_journal_order_when_their_order_is_decided(
    tmp_path: Path, size: int
) -> None:
    shop = Shop()
    records = [refund(shop, total=30), refund(shop, "o-2", total=1), cancellation(shop)]
    shop.now += HOUR
    records += [order(shop), refund(shop, total=5), order(shop), order(shop, "o-2")]
    bodies, counted = await worked_off(tmp_path, records, sizes=repeat(size))
    found = [(body["orderId"], body["reason"], body["value"]["total"]) for body in bodies]
    assert found == [("o-1", "refund", 30), ("o-1", "cancel", 70), ("o-2", "refund", 1)]
    assert {body["decidedAt"] for body in bodies} == {records[3].decode()["receivedAt"]}
    assert [body["cause"] for body in bodies] == [records[index].decode()["id"] for index in (0, 2, 1)]
    assert counted == {"waiting": 3, "reversed": 3, "nothing_left": 1}


async def test_a_waiting_refund_survives_restarts_and_contains_no_personal_data(tmp_path: Path) -> None:
    shop = Shop()
    sent = shop.event("Order Refunded", "ada-visitor", {"order_id": "ada-order", "total": 30}, user="ada-user")
    async with attributing(tmp_path, Rules()) as attribution:
        await append(attribution.backend, [sent])
        await attribution.work_off(repeat(10), sent.at)
    async with attributing(tmp_path, Rules()) as attribution:
        entries = [entry async for entry in attribution.backend.store.scan("attribution-waiting")]
        assert len(entries) == 1
        assert "ada" not in str(entries)
        await append(attribution.backend, [order(shop, "ada-order")])
        await attribution.work_off(repeat(10), sent.at)
        assert totals(await reversals(attribution)) == [30]
    async with attributing(tmp_path, Rules()) as attribution:
        assert [entry async for entry in attribution.backend.store.scan("attribution-waiting")] == []


@pytest.mark.parametrize(("after", "applied"), [(MEMORY, [30]), (MEMORY + 1, [])])
async def test_a_refund_waits_as_long_as_a_decided_order_is_remembered(
    tmp_path: Path, after: int, applied: list[float]
) -> None:
    """The times of receipt count. In this test the consumer is never late."""
    shop = Shop()
    records = [refund(shop, total=30)]
    shop.now += after
    records.append(order(shop))
    async with attributing(tmp_path, Rules()) as attribution:
        for record in records:
            await attribution.append([record])
            await attribution.work_off(repeat(10), record.at)
        assert totals(await reversals(attribution)) == applied
        agrees(await attribution.derived(), Reference(Rules(), [record.decode() for record in records]))


async def test_a_refund_of_a_forgotten_order_waits_for_the_next_order_of_that_id(tmp_path: Path) -> None:
    shop = Shop()
    records = [order(shop, total=40)]
    shop.now += 3 * HOUR
    records += [refund(shop, total=30), order(shop)]
    bodies, counted = await worked_off(tmp_path, records, Rules(order_memory=2 * HOUR))
    assert totals(bodies) == [30]
    assert counted == {"waiting": 1, "reversed": 1}


@pytest.mark.logs("came before its order and is ignored: 20 already wait")
async def test_at_most_twenty_refunds_wait_for_an_order(tmp_path: Path) -> None:
    shop = Shop()
    records = [refund(shop, total=number) for number in range(1, 23)]
    records += [refund(shop, "o-2", total=7, refund_id="r-1") for _ in range(30)]
    bodies, counted = await worked_off(tmp_path, [*records, order(shop, total=1000), order(shop, "o-2")])
    assert totals(bodies) == [*range(1, 21), 7]
    assert counted == {"waiting": 21, "too_many": 2, "repeated": 29, "reversed": 21}


@pytest.mark.logs("is in another currency")
async def test_a_waiting_refund_in_another_currency_reverses_nothing(tmp_path: Path) -> None:
    shop = Shop()
    sent = [refund(shop, total=30, currency=currency) for currency in ("USD", " eur")]
    bodies, counted = await worked_off(tmp_path, [*sent, order(shop)])
    assert totals(bodies) == [30]
    assert counted == {"waiting": 2, "other_currency": 1, "reversed": 1}


# Refund ids


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_a_refund_id_of_an_order_reverses_once(tmp_path: Path, first: int) -> None:
    """The order may come before, between or after its refunds."""
    shop = Shop()
    sent = [
        *(refund(shop, total=1, refund_id=refund_id) for refund_id in ("r-1", " r-1\n", 7, "7")),
        refund(shop, total=2, refund_id="r-1"),  # the same refund despite another amount
        refund(shop, total=3, refund_id="R-1"),
        *(refund(shop, total=4, refund_id=refund_id) for refund_id in ("", " ", None, True, 7.5, ["r-1"])),
        refund(shop, "o-2", total=5, refund_id="r-1"),
    ]
    completed = [order(shop), order(shop, "o-2")]
    async with attributing(tmp_path, Rules()) as attribution:
        await append(attribution.backend, [*sent[:first], *completed, *sent[first:]])
        await attribution.work_off(repeat(5), LONG_AFTER)
        assert sorted(totals(await reversals(attribution))) == [1, 1, 3, *[4] * 6, 5]
        assert attribution.counted("reversals")["repeated"] == 3


@pytest.mark.logs("is in another currency")
async def test_a_refund_id_that_reversed_nothing_can_be_sent_again(tmp_path: Path) -> None:
    shop = Shop()
    wrong = [refund(shop, total=30, refund_id="r-1", currency="USD"), refund(shop, total=0, refund_id="r-1")]
    right = [refund(shop, total=30, refund_id="r-1") for _ in range(2)]
    bodies, counted = await worked_off(tmp_path, [order(shop), *wrong, *right])
    assert totals(bodies) == [30]
    assert counted == {"other_currency": 1, "no_amount": 1, "reversed": 1, "repeated": 1}


async def test_a_cancellation_has_no_refund_id(tmp_path: Path) -> None:
    shop = Shop()
    sent = [refund(shop, total=30, refund_id="r-1"), refund(shop, key="Order Cancelled", refund_id="r-1")]
    bodies, _ = await worked_off(tmp_path, [order(shop), *sent])
    assert totals(bodies) == [30, 70]


# Amounts, currencies and order ids


@pytest.mark.logs("is in another currency", "sent again with another value")
async def test_case_and_blanks_of_a_currency_do_not_matter(tmp_path: Path) -> None:
    shop = Shop()
    records = [order(shop, currency=" eur")]
    records += [refund(shop, total=1, currency=currency) for currency in ("EUR", "Eur\n", "", " ", "EURO")]
    records += [order(shop, currency="EUR"), order(shop, currency="USD")]
    records += [order(shop, "o-2", currency=" "), refund(shop, "o-2", total=2, currency="USD")]
    async with attributing(tmp_path, Rules()) as attribution:
        await append(attribution.backend, records)
        await attribution.work_off(repeat(100), LONG_AFTER)
        bodies = [msgspec.json.decode(body) for body in await attribution.derived()]
        assert [body["value"]["currency"] for body in bodies] == [
            *[" eur"] * 5,
            None,
            None,
        ]  # with the currency as the caller wrote it
        assert attribution.counted("reversals") == {"reversed": 5, "other_currency": 1}
        assert attribution.counted("orders") == {"direct": 2, "repeated": 1, "conflict": 1}


async def test_a_partial_refund_takes_back_its_products(tmp_path: Path) -> None:
    shop = Shop()
    item = {"product_id": "a", "price": 30, "quantity": 1}
    other = {"product_id": "b", "price": 35}
    asked: list[tuple[dict[str, Any], float | None]] = [
        ({"products": [item]}, 30),
        ({"products": [item, other]}, 65),
        ({"products": [{**other, "quantity": 2}]}, 70),
        ({"products": [{**item, "quantity": 9}]}, 100),
        ({"value": 20, "products": [item]}, 20),
        ({"value": "20", "products": [item]}, 30),
        ({"total": 10, "value": 20, "products": [item]}, 10),
        ({"products": [{"product_id": "a"}]}, None),
        ({"products": []}, 100),
        ({"products": [{"price": 0}]}, None),
        ({}, 100),
    ]
    records = [order(shop, f"o-{number}") for number in range(len(asked))]
    records += [refund(shop, f"o-{number}", **data) for number, (data, _) in enumerate(asked)]
    bodies, _ = await worked_off(tmp_path, records)
    found = {body["orderId"]: body["value"]["total"] for body in bodies}
    assert [found.get(f"o-{number}") for number in range(len(asked))] == [total for _, total in asked]


async def test_a_blank_or_unusable_order_id_is_none(tmp_path: Path) -> None:
    shop, none = Shop(), ["", " ", " ", "\u00a0\n", "none", " NULL", "undefined", "undefined", 0]
    records = [order(shop, order_id) for order_id in none]
    records += [refund(shop, order_id, total=1) for order_id in none]
    async with attributing(tmp_path, Rules(unusable=("none", "null", "undefined", "0"))) as attribution:
        await append(attribution.backend, records)
        await attribution.work_off(repeat(100), LONG_AFTER)
        bodies = [msgspec.json.decode(body) for body in await attribution.derived()]
        assert [body["orderId"] for body in bodies] == [None] * len(none)
        assert len({body["id"] for body in bodies}) == len(none)
        assert attribution.counted("reversals") == {"unknown_order": len(none)}


async def test_an_unusable_refund_id_is_none(tmp_path: Path) -> None:
    shop = Shop()
    sent = [refund(shop, total=1, refund_id=refund_id) for refund_id in ("null", "null", " Null", 0, 0)]
    bodies, _ = await worked_off(tmp_path, [order(shop), *sent], Rules(unusable=("null", "0")))
    assert totals(bodies) == [1] * 5


async def test_order_ids_are_compared_exactly(tmp_path: Path) -> None:
    shop = Shop()
    records = [order(shop, order_id) for order_id in ("o-1", " o-1", "O-1")]
    bodies, _ = await worked_off(tmp_path, [*records, refund(shop, " o-1", total=1)])
    assert [body["orderId"] for body in bodies] == [" o-1"]


# The person of a reversal


@pytest.mark.parametrize("by", ["command", "record"])
async def test_a_reversal_names_nobody_who_has_been_forgotten(tmp_path: Path, by: str) -> None:
    """Not even after the person has come back with another order. Orders of other persons keep their ids."""
    shop = Shop()
    referrer = {"page": {"url": "https://www.shop.example/", "referrer": "https://www.google.com/"}}
    first = [shop.identify("a", "u"), shop.touch("a", "mail"), shop.touch("b", "search"), shop.identify("c", "u")]
    first += [shop.event("Page View", "a", context=referrer, session=1)]
    first += [shop.order("a", "o-1"), shop.order("b", "o-2"), shop.order("c", "o-3")]
    async with attributing(tmp_path, Rules()) as attribution:
        await append(attribution.backend, first)
        await attribution.work_off(repeat(100), shop.now)
        if by == "command":
            state = attribution.backend.store.begin(shop.now)
            digests = [key_digest("shop", "a"), key_digest("shop", "c")]
            counts = await forget(Person("shop", "u", digests), state)
            assert counts == {"touches": 2, "journey links": 2, "ids of orders": 3}
            await attribution.backend.store.commit(state)
        else:
            erasure = {"id": "e", "type": "erasure", "tenant": "shop", "userId": "u", "anonymousIds": ["a", "c"]}
            await append(attribution.backend, [Record("erasure", shop.now, msgspec.json.encode(erasure))])
        await append(attribution.backend, [shop.order("a", "o-4"), *(shop.refund(f"o-{n}") for n in range(1, 5))])
        await attribution.work_off(repeat(100), shop.now)
        found = {body["orderId"]: body for body in await reversals(attribution)}
    people = {name: (body["anonymousId"], body["userId"], body.get("erased")) for name, body in found.items()}
    assert people == {
        "o-1": (None, None, True),
        "o-2": ("b", None, None),
        "o-3": (None, None, True),
        "o-4": ("a", None, None),
    }
    event_id = first[1].decode()["id"]
    assert [found[name]["touchpoint"] for name in ("o-1", "o-3", "o-4")] == [
        {"eventId": event_id},
        {"eventId": event_id},
        None,
    ]
    assert found["o-2"]["touchpoint"]["source"] == "search"
