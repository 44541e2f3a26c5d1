"""Filters of a sink: by type, event key, channel and tenant. Erasures pass filters by event key and channel."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.api.events import Record
from ingestd.delivery.options import FilterOptions
from ingestd.delivery.transforms import Filter, check_filter, make_filter
from ingestd.testing.records import make_records, make_records_of_every_type

KEYS = ["Page View", "Product Viewed", "Order Completed"]


def record(type: str = "event", **members: Any) -> Record:
    return Record(type, 0, json.dumps({"id": "1", "type": type, **members}).encode(), 1)


def filter_of(**options: Any) -> Filter:
    found = make_filter(FilterOptions(**options))
    assert found is not None
    return found


VIEW, ORDER = (record(tenant="shop", key=key) for key in ("Page View", "Order Completed"))
IDENTIFY = record("identify", tenant="shop", userId="u")
ATTRIBUTION = record("attribution", tenant="shop", orderId="o")
PAID = record("attribution", tenant="shop", touchpoint={"channel": "Paid Search"})
ERASURE = record("erasure", tenant="shop", userId="u", anonymousIds=["v"])
OTHERS = record(tenant="other", key="Page View")
EVERY = {
    "view": VIEW,
    "order": ORDER,
    "identify": IDENTIFY,
    "attribution": ATTRIBUTION,
    "paid": PAID,
    "erasure": ERASURE,
    "other's": OTHERS,
}


def test_without_a_filter_no_record_is_decoded() -> None:
    assert make_filter(FilterOptions()) is None


@pytest.mark.parametrize(
    ("options", "passing"),
    [
        ({"types": ("event",)}, {"view", "order", "other's"}),
        ({"types": ("event", "erasure")}, {"view", "order", "other's", "erasure"}),
        ({"types": ("identify", "attribution")}, {"identify", "attribution", "paid"}),
        ({"tenants": ("shop",)}, {"view", "order", "identify", "attribution", "paid", "erasure"}),
        ({"tenants": ("other",)}, {"other's"}),
        ({"tenants": ("shop", "other")}, {*EVERY}),
        # A sink that gets a person's events also gets their erasure, unless its `types` are without erasures.
        ({"keys": ("Page View",)}, {"view", "other's", "erasure"}),
        ({"keys": ("Page View", "Order Completed")}, {"view", "order", "other's", "erasure"}),
        ({"keys": ("Page View",), "types": ("event",)}, {"view", "other's"}),
        (
            {"keys": ("Page View",), "types": ("event", "identify", "erasure")},
            {"view", "other's", "identify", "erasure"},
        ),
        # An order with its attribution: keys limit events only.
        ({"keys": ("Order Completed",), "types": ("event", "attribution")}, {"order", "attribution", "paid"}),
        ({"channels": ("Paid Search",)}, {"paid", "erasure"}),
        ({"channels": ("Direct",)}, {"attribution", "erasure"}),
        ({"keys": ("Order Completed",), "channels": ("Paid Search",)}, {"order", "paid", "erasure"}),
        ({"types": ("event", "attribution"), "channels": ("Paid Search",)}, {"view", "order", "other's", "paid"}),
        ({"types": ("identify",), "channels": ("Paid Search",)}, {"identify"}),
        ({"types": ("attribution",), "channels": ()}, set()),
        ({"keys": ("Page View",), "tenants": ("shop",)}, {"view", "erasure"}),
        ({"keys": ("Page View",), "tenants": ("other",)}, {"other's"}),
        ({"keys": ("Order Completed",), "tenants": ("other",)}, set()),
        ({"types": ("event",), "keys": ("Page View",), "tenants": ("shop",)}, {"view"}),
        # An empty list passes nothing. It differs from a missing option.
        ({"types": ()}, set()),
        ({"keys": ()}, {"erasure"}),
        ({"tenants": ()}, set()),
        ({"types": (), "keys": (), "tenants": ()}, set()),
        # Comparisons respect case and blanks.
        ({"types": ("Event",)}, set()),
        ({"keys": ("page view",)}, {"erasure"}),
        ({"tenants": ("Shop", "shop ")}, set()),
    ],
)
def test_records_that_pass(options: dict[str, Any], passing: set[str]) -> None:
    passes = filter_of(**options)
    assert {name for name, each in EVERY.items() if passes(each)} == passing


@pytest.mark.parametrize("options", [{"keys": ("Page View",)}, {"tenants": ("shop",)}, {"types": ("event",)}])
@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"key":7,"tenant":["shop"]}', b'{"key":null,"tenant":null}', b"[1]", b'"Page View"', b"null"],
)
def test_the_record_of_a_plugin_does_not_pass_by_members_that_it_lacks(body: bytes, options: Any) -> None:
    """It also does not stop the sink."""
    assert not filter_of(**options)(Record("shop:receipt", 0, body, 1))
    assert filter_of(types=("shop:receipt",))(Record("shop:receipt", 0, body, 1))


def test_nested_members_of_a_record_do_not_count() -> None:
    inner = record(tenant="other", key="Other", data={"key": "Page View", "tenant": "shop"}, extra={"type": "event"})
    assert not filter_of(keys=("Page View",))(inner)
    assert not filter_of(tenants=("shop",))(inner)


def test_the_type_of_the_record_counts_and_not_the_type_in_its_body() -> None:
    odd = Record("event", 0, b'{"type":"erasure","tenant":"shop","key":"Other"}', 1)
    assert not filter_of(keys=("Page View",))(odd)
    assert filter_of(types=("event",))(odd)


def test_names_of_any_characters_are_compared_exactly() -> None:
    for name in ("zażółć", "🛒", "a\x00b", '"', "\u2028", ""):
        assert filter_of(tenants=(name,))(record(tenant=name))
        assert filter_of(keys=(name,))(record(key=name))
        assert not filter_of(tenants=(name,))(record(tenant=name + "x"))


def test_records_of_every_type_can_be_filtered() -> None:
    records = [*make_records(2), *make_records_of_every_type()]
    passes = filter_of(tenants=("shop",), keys=("Page View",))
    assert [each.type for each in records if passes(each)] == ["event", "event", "erasure"]
    everyone = filter_of(tenants=("shop",))
    assert [each for each in records if not everyone(each)] == [each for each in records if each.type == "shop:receipt"]


names = st.sampled_from(["a", "b", "c"])
choices = st.none() | st.lists(names, max_size=3).map(tuple)


@given(choices, choices, choices, st.sampled_from(["a", "b", "erasure"]), st.none() | names, st.none() | names)
def test_each_option_only_excludes_records(
    types: Any, keys: Any, tenants: Any, type: str, key: Any, tenant: Any
) -> None:
    passes = make_filter(FilterOptions(types=types, keys=keys, tenants=tenants)) or (lambda _: True)
    expected = (
        (types is None or type in types)
        and (tenants is None or tenant in tenants)
        and (keys is None or type == "erasure" or (types is not None if key is None else key in keys))
    )
    assert passes(record(type, key=key, tenant=tenant)) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ("Page Veiw",)}, "out.keys: there is no event key 'Page Veiw'; did you mean Page View?"),
        ({"keys": ("Page View", "zzz")}, "out.keys: there is no event key 'zzz'"),
        ({"channels": ("paid serch",)}, "out.channels: there is no channel 'paid serch'; did you mean Paid Search?"),
        ({"types": ("events",)}, "out.types: there is no type 'events'; did you mean event?"),
        ({"types": ("event", "erasures")}, "out.types: there is no type 'erasures'; did you mean erasure?"),
    ],
)
def test_an_impossible_filter_is_refused_with_the_nearest_name(options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_filter(FilterOptions(**options), KEYS, ["Paid Search", "Direct"], "out")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keys": KEYS, "types": ("event", "identify", "attribution", "attribution_reversal", "erasure")},
        {"types": ("shop:receipt",), "tenants": ("any", "tenant")},  # a record type of a plugin
    ],
)
def test_a_possible_filter_is_accepted(options: Any) -> None:
    check_filter(FilterOptions(**options), KEYS, ["Paid Search", "Direct"], "out")
    assert (make_filter(FilterOptions(**options)) is None) == (options == {})
