"""The records of a selection. The search in the stored bytes finds every record that decoding would find."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.plugins.tools.export import RecordSelection


def record(type: str = "event", at: int = 5, **members: Any) -> Record:
    return Record(type, at, msgspec.json.encode({"type": type, **members}), 1)


EVERY = {
    "view": record(tenant="shop", key="Page View", data={}, userId="ada", anonymousId="v-1"),
    "order": record(tenant="shop", key="Order Completed", data={"order_id": "o-1"}, userId=None, anonymousId="v-2"),
    "number": record(tenant="other", key="Rental Begun", data={"order_id": 17}, userId="bob", anonymousId="v-1"),
    "identify": record("identify", at=9, tenant="shop", userId="ada", anonymousId="v-2", traits={"order_id": "o-1"}),
    "attribution": record("attribution", tenant="shop", orderId="o-1", userId="ada", anonymousId="v-2"),
    "erasure": record("erasure", tenant="shop", userId="ada", anonymousIds=["v-1", "v-2"]),
    "plugin's": record("stock", at=1, tenant=["shop"], key={"key": "Page View"}, data="o-1", userId=True, orderId=[17]),
    "no object": Record("stock", 5, b"17", 1),
}


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        ({}, {*EVERY}),
        ({"types": ["event"]}, {"view", "order", "number"}),
        ({"types": ["identify", "erasure"]}, {"identify", "erasure"}),
        ({"keys": ["Page View"]}, {"view"}),
        ({"keys": ["Page View", "Rental Begun"]}, {"view", "number"}),
        ({"tenant": "shop"}, {"view", "order", "identify", "attribution", "erasure"}),
        ({"user": "ada"}, {"view", "identify", "attribution", "erasure"}),
        ({"user": ""}, set()),
        ({"user": "ad"}, set()),
        ({"user": "True"}, set()),
        ({"anonymous": "v-1"}, {"view", "number", "erasure"}),
        ({"order": "o-1"}, {"order", "attribution"}),
        ({"order": "17"}, {"number"}),
        ({"since": 5, "until": 9}, {"view", "order", "number", "attribution", "erasure", "no object"}),
        ({"since": 9}, {"identify"}),
        ({"until": 5}, {"plugin's"}),
        ({"user": "ada", "keys": ["Page View"], "tenant": "shop"}, {"view"}),
        ({"user": "ada", "tenant": "other"}, set()),
        ({"user": "\udcff"}, set()),  # a byte on the command line that is not UTF-8
    ],
)
def test_a_record_is_selected_if_it_meets_every_condition(options: Any, selected: set[str]) -> None:
    selection = RecordSelection(**options)
    assert {name for name, each in EVERY.items() if selection.matches(each)} == selected


@given(st.text(), st.booleans(), st.booleans())
def test_a_text_is_found_however_its_body_is_encoded(text: str, by_msgspec: bool, ascii_only: bool) -> None:
    members = {"key": text, "userId": text, "data": {"order_id": text}}
    body = msgspec.json.encode(members) if by_msgspec else json.dumps(members, ensure_ascii=ascii_only).encode()
    selection = RecordSelection(keys=[text], user=text, order=text)
    assert selection.matches(Record("event", 0, body, 1))


def test_only_the_mark_of_an_import_hides_a_former_copy() -> None:
    mark = {"endpoint": "segment", "at": "2026-11-26T10:00:00.000Z", "state": False}
    forged = {"import": {"completed": True}, "completed": True}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"import": mark}, True),
        ({"import": {**mark, "completed": True}}, False),
        ({"import": mark, "data": forged, "extra": forged}, True),
        ({"data": forged, "extra": forged}, True),
    ]
    for members, is_selected in cases:
        assert RecordSelection().matches(record(**members)) is is_selected
    assert RecordSelection().matches(Record("stock", 5, b'[{"import":{"completed":true}}]', 1))
