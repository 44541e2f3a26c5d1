"""A webhook that the configuration describes, and its trial on the command line."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.support.daemon import run_ingestd
from tests.support.platforms import Platforms, taken


def message(**members: Any) -> dict[str, Any]:
    order = {
        "no": 4711, "visitor": f"visitor-{uuid4()}", "total": "19.90", "currency": "EUR", "customer": {"no": "c-1"},
        "lines": [{"sku": 17, "price": "9.95", "qty": 2}], **members.pop("order", {}),
    }  # fmt: skip
    return {"id": str(uuid4()), "event": "order.paid", "at": 1_790_000_000, "order": order, **members}


def test_pointers_say_where_the_parts_of_an_event_are(place: Platforms) -> None:
    sent = message()
    for _ in range(2):
        assert taken(place.erp(sent))
    (record,) = place.records(sent["order"]["visitor"])
    assert (record["key"], record["timestamp"], record["userId"]) == (
        "Order Completed", "2026-09-21T14:13:20.000Z", "c-1"
    )  # fmt: skip
    assert record["data"] == {
        "order_id": "4711", "total": 19.9, "currency": "EUR",
        "products": [{"sku": "17", "price": 9.95, "quantity": 2}],
    }  # fmt: skip


def test_other_messages_of_the_platform_are_no_events(place: Platforms) -> None:
    sent = message(event="stock.changed")
    assert taken(place.erp(sent))
    assert place.records(sent["order"]["visitor"]) == []


@pytest.mark.parametrize("prefix", ["", "sha1=", "sha256"])
def test_only_the_signature_in_its_form_proves_the_platform(place: Platforms, prefix: str) -> None:
    answer = place.erp(message(), prefix=prefix)
    assert (answer.status, answer.json()["code"]) == (401, "invalid_signature")


def test_a_trial_shows_the_records_or_the_faults(place: Platforms) -> None:
    file = place.shop.folder / "message.json"
    sent = message()
    file.write_text(json.dumps(sent))
    shown = json.loads(place.shop.command("webhooks", "test", "erp", str(file)))
    assert (shown["key"], shown["anonymousId"]) == ("Order Completed", sent["order"]["visitor"])
    file.write_text(json.dumps(message(order={"total": "19,90", "currency": 7})))
    good, large = place.shop.folder / "good.json", place.shop.folder / "large.json"
    good.write_text(json.dumps(message(order={"currency": 7})))
    large.write_text(" " * (1 << 20) + json.dumps(message()))
    for arguments, told in (
        (
            ("erp", file),
            "Order Completed is refused: /data/total: expected number, got string; /data/currency: expected",
        ),
        (("erp", good), "Order Completed is refused: /data/currency: expected string, got number; /data/"),
        (("erq", file), "no webhook has the name erq; did you mean erp?"),
        (("erp", large), "more than [http] max_body (1MiB)"),
        (("erp", place.shop.folder), f"{place.shop.folder}: Is a directory\n"),
        (("erp", file, "--header", "nonsense"), "--header: expected NAME: VALUE, got 'nonsense'\n"),
        (("erp", file, "--header", "X: a\r\nY: b"), "--header: expected NAME: VALUE, got 'X: a\\r\\nY: b'\n"),
    ):
        done = run_ingestd("webhooks", "test", *map(str, arguments), config=place.shop.config)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert place.records(sent["order"]["visitor"]) == []
    file.write_text(json.dumps({"id": 1, "test": True}))
    topic = ("--header", "X-Shopify-Topic: orders/create")
    assert place.shop.command("webhooks", "test", "de", str(file), *topic) == ""
