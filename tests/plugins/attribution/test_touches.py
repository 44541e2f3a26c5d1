"""Touchpoints: campaigns from fields and addresses, in any form that callers send, and the exclusions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.times import FIRST, LAST
from ingestd.plugins.attribution.arrivals import Arrivals
from ingestd.plugins.attribution.reading import Seen, read
from ingestd.plugins.attribution.touches import CAMPAIGN_FIELDS, Exclusions, Touch, campaign_of
from ingestd.plugins.sources import SourceRules
from ingestd.support.unusable_ids import UnusableIds

PARAMETERS = dict(
    zip(CAMPAIGN_FIELDS, ("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"), strict=True)
)
LONGEST = 256
ARRIVALS = Arrivals(Exclusions((), (), ()), SourceRules(), "fallback")


def found(context: dict[str, Any]) -> dict[str, str]:
    """The fields of the campaign that have a value."""
    campaign = campaign_of(context.get("campaign"), context.get("page"))
    return {name: value for name, value in zip(CAMPAIGN_FIELDS, campaign, strict=True) if value is not None}


def at(url: Any) -> dict[str, str]:
    return found({"page": {"url": url}})


# Campaigns in events


@pytest.mark.parametrize("name", CAMPAIGN_FIELDS)
def test_one_field_is_enough_for_a_campaign(name: str) -> None:
    assert found({"campaign": {name: "x"}}) == {name: "x"}
    assert at(f"https://shop.example/?{PARAMETERS[name]}=x") == {name: "x"}


def test_all_fields_of_a_campaign() -> None:
    given_all = {name: f"the {name}" for name in CAMPAIGN_FIELDS}
    assert found({"campaign": {**given_all, "id": "no field of it"}}) == given_all
    query = "&".join(f"{PARAMETERS[name]}={quote_plus(value)}" for name, value in given_all.items())
    assert at(f"https://shop.example/landing?page=2&{query}&utm_id=9#top") == given_all


def test_the_address_counts_only_if_the_campaign_has_no_values() -> None:
    page = {"url": "https://shop.example/?utm_source=address&utm_medium=cpc"}
    assert found({"campaign": {"name": "given"}, "page": page}) == {"name": "given"}
    of_the_address = {"source": "address", "medium": "cpc"}
    nothing: list[Any] = [
        {},
        {"source": ""},
        {"source": " \t\n", "name": "\N{NO-BREAK SPACE}"},
        {"id": "7"},
        None,
        "x",
        [],
    ]
    for campaign in nothing:
        assert found({"campaign": campaign, "page": page}) == of_the_address


def test_blanks_around_a_value_do_not_count() -> None:
    assert found({"campaign": {"source": "  news letter \n", "medium": "   "}}) == {"source": "news letter"}
    assert at("?utm_source=+news%20letter+&utm_medium=+%09") == {"source": "news letter"}


@pytest.mark.parametrize("value", [None, True, 7, 1.5, ["x"], {"x": "y"}])
def test_a_value_that_is_not_a_text_does_not_count(value: Any) -> None:
    assert found({"campaign": {"source": value, "name": "n"}}) == {"name": "n"}
    assert found({"campaign": {"source": value}, "page": {"url": "?utm_source=x"}}) == {"source": "x"}
    assert found({"campaign": value}) == found({"page": value}) == at(value) == {}


# Addresses


@pytest.mark.parametrize(
    ("query", "source"),
    [
        ("utm_source=spring+sale", "spring sale"),
        ("utm_source=spring%20sale", "spring sale"),
        ("utm_source=a%2Bb", "a+b"),
        ("utm_source=50%25", "50%"),
        ("utm_source=a%26utm_medium%3Db", "a&utm_medium=b"),
        ("utm_source=a%23b", "a#b"),
        ("utm_source=a=b?c", "a=b?c"),
        ("utm_source=P%C5%99%C3%ADli%C5%A1", "Příliš"),
        ("utm_source=Příliš", "Příliš"),
        ("utm_source=%F0%9F%8E%84", "🎄"),
        ("utm_source=100%", "100%"),
        ("utm_source=%zz", "%zz"),
        ("utm_source=%ff", "\N{REPLACEMENT CHARACTER}"),
        ("UTM_SOURCE=Case", "Case"),
        ("Utm_Source=Case", "Case"),
        ("utm%5Fsource=x", "x"),
        ("%75%74%6D%5F%73%6f%75%72%63%65=x", "x"),
        ("%55TM%5fSOURCE=x", "x"),
        ("utm_source=a#b", "a"),
        ("utm_source=a#utm_source=b", "a"),
        ("utm_source=a&utm_source=b", "a"),
        ("utm_source=&utm_source=+&utm_source=c&UTM_SOURCE=d", "c"),
        ("&&&utm_source=a&&", "a"),
        ("#utm_source=a", "a"),
        ("b=c#/path?utm_source=a", "a"),
    ],
)
def test_the_source_of_an_address(query: str, source: str) -> None:
    assert at(f"https://shop.example/path?{query}") == {"source": source}
    assert at(f"/path?{query}") == {"source": source}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "?",
        "https://shop.example/",
        "https://shop.example/utm_source=a",
        "https://shop.example/#/?b=c#?utm_source=a",
        "https://shop.example/?utm_source",
        "https://shop.example/?utm_source=",
        "https://shop.example/?utm_source=%20",
        "https://shop.example/?=a",
        "https://shop.example/?+utm_source=a",
        "https://shop.example/?utm_sources=a&xutm_source=b&source=c&utm=d",
        "http://[::1",
        "http://[not an address]/?q=1",
        "\x00\x1b[31m?\x00=\x1b",
        "?" * 10_000,
        "&=%" * 10_000,
    ],
)
def test_an_address_without_a_campaign(url: str) -> None:
    assert at(url) == {}


def test_a_broken_address_may_still_have_a_campaign() -> None:
    assert at("http://[::1?utm_source=a") == at("??utm_medium=b&utm_source=a") == {"source": "a"}


@given(
    st.fixed_dictionaries({}, optional={name: st.text(max_size=60) for name in CAMPAIGN_FIELDS}),
    st.sampled_from([quote, quote_plus]),
)
def test_values_encoded_by_a_browser_are_decoded(values: dict[str, str], encode: Callable[[str], str]) -> None:
    query = "&".join(f"{PARAMETERS[name]}={encode(value)}" for name, value in values.items())
    expected = {name: value.strip() for name, value in values.items() if value.strip()}
    assert at(f"https://shop.example/?{query}#{query}") == expected
    assert found({"campaign": values}) == expected


# Bounds


def test_a_long_name_is_cut() -> None:
    name = "a " * 5000
    for cut in (found({"campaign": {"name": name}}), at(f"?utm_campaign={quote_plus(name)}")):
        assert name.startswith(cut["name"])
        assert len(cut["name"]) == LONGEST - 1  # the blank at its end is removed


def test_a_long_name_is_cut_between_letters() -> None:
    assert at(f"?utm_campaign={quote('ř🎄' * 5000)}") == {"name": "ř🎄" * (LONGEST // 2)}


def test_a_huge_address_takes_no_time() -> None:
    started = time.process_time()
    campaigns = [at("?" + "utm_sourc%65=&" * 70_000), at("?" + "x" * 1_000_000), at("?utm_source=" + "%41" * 300_000)]
    assert time.process_time() - started < 1
    assert campaigns == [{}, {}, {"source": "A" * LONGEST}]


TEXTS = st.text(max_size=8) | st.sampled_from(["utm_source", "a", " "])
QUERIES = st.lists(
    st.tuples(
        st.sampled_from(["utm_source", "UTM_Medium", "utm%5Fcampaign", "%75tm_term", "%55%54%4d_content", "q"]), TEXTS
    ),
    max_size=4,
).map(lambda pairs: "https://shop.example/ř?" + "&".join(f"{name}={quote_plus(value)}" for name, value in pairs))
VALUES = st.none() | st.integers() | TEXTS
CONTEXTS = st.dictionaries(TEXTS, VALUES, max_size=2).flatmap(
    lambda further: st.fixed_dictionaries(
        {name: st.just(value) for name, value in further.items()},
        optional={
            "campaign": st.dictionaries(st.sampled_from([*CAMPAIGN_FIELDS, "id"]), VALUES, max_size=3) | VALUES,
            "page": st.fixed_dictionaries({}, optional={"url": QUERIES | TEXTS | st.none(), "title": TEXTS}) | VALUES,
        },
    )
)


def every_letter_escaped(text: str) -> str:
    """JSON of a string with each letter as `\\uxxxx`."""
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'


def escaped(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{every_letter_escaped(name)}:{escaped(each)}" for name, each in value.items()) + "}"
    return every_letter_escaped(value) if isinstance(value, str) else json.dumps(value)


def event(context: str, **members: Any) -> Record:
    """A record of the journal with this JSON as its context."""
    body = {"id": "e", "type": "event", "tenant": "shop", "key": "Page View", "data": {}, "anonymousId": "v",
            "timestamp": "2026-11-21T10:00:00.000Z", "userId": None, "sessionId": "s", "dispatchId": None,
            **members}  # fmt: skip
    return Record(
        "event", 0, json.dumps(body, separators=(",", ":"))[:-1].encode() + f',"context":{context}}}'.encode(), 1
    )


def touch_of(record: Record) -> Touch | None:
    seen = read(record, ARRIVALS, UnusableIds())
    assert seen is None or isinstance(seen, Seen)
    return seen.touch if seen is not None else None


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ("0000-01-01T00:00:00.000Z", FIRST),
        ("9999-12-31T23:59:59.999Z", LAST),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000),
        ("yesterday", 0),
    ],
)
def test_a_touch_is_dated_by_any_timestamp_and_without_one_by_its_receipt(timestamp: str, at: int) -> None:
    touch = touch_of(event('{"campaign": {"source": "x"}}', timestamp=timestamp))
    assert touch is not None
    assert touch.at == at


@given(CONTEXTS)
@example({"page": {"url": "?UTM_SOURCE=x"}})
@example({"page": {"url": "?%75%74%6d_source=x"}})
@example({"campaign": {"content": "x"}})
def test_a_campaign_is_found_however_the_record_is_written(context: dict[str, Any]) -> None:
    encodings = [json.dumps(context), json.dumps(context, ensure_ascii=False), escaped(context)]
    assert [json.loads(text) for text in encodings] == [context] * 3
    for text in encodings:
        touch = touch_of(event(text))
        assert (touch is not None) == bool(found(context))
        assert touch is None or {name: getattr(touch, name) for name in found(context)} == found(context)


@pytest.mark.parametrize("data", [{}, {"dispatchId": None}, {"dispatchId": "d-2"}])
def test_a_dispatch_is_found_beside_other_members_of_that_name(data: dict[str, Any]) -> None:
    with_one = touch_of(event("{}", data=data, dispatchId="d-1"))
    assert with_one is not None
    assert with_one.dispatch_id == "d-1"
    assert touch_of(event("{}", data=data)) is None


# Order


def test_touches_are_in_order_of_time_and_then_of_the_journal() -> None:
    def touch(position: int, at: int) -> Touch:
        return Touch(position, at, f"event-{position}", None, "a", None, None, None, None, None)

    late, early, second, third = touch(1, 900), touch(9, 100), touch(2, 500), touch(3, 500)
    assert sorted([third, late, second, early], key=lambda each: each.order) == [early, second, third, late]


# Exclusions


def reason(exclusions: Exclusions, context: dict[str, Any]) -> str | None:
    page = context.get("page")
    return exclusions.reason(campaign_of(context.get("campaign"), page), page)


def test_nothing_is_excluded_unless_asked_for() -> None:
    nothing = Exclusions((), (), ())
    assert not nothing
    assert (
        reason(nothing, {"campaign": {"source": "shop.example"}, "page": {"referrer": "https://shop.example"}}) is None
    )


def test_excluded_sources_and_mediums() -> None:
    exclusions = Exclusions(["PayPal", " Straße "], ["Internal"], [])
    assert exclusions
    assert reason(exclusions, {"campaign": {"source": "paypal"}}) == "excluded_source"
    assert reason(exclusions, {"campaign": {"source": "PAYPAL ", "medium": "cpc"}}) == "excluded_source"
    assert reason(exclusions, {"campaign": {"source": "STRASSE"}}) == "excluded_source"
    assert reason(exclusions, {"page": {"url": "?utm_source=pay%50al"}}) == "excluded_source"
    assert reason(exclusions, {"campaign": {"source": "x", "medium": "INTERNAL"}}) == "excluded_medium"
    for other in ("paypal.com", "my paypal", "internal", None):
        assert reason(exclusions, {"campaign": {"source": other, "medium": "paypal", "name": "internal"}}) is None
    assert reason(exclusions, {}) is None


@pytest.mark.parametrize("own", ["shop.example", " Shop.Example. ", ".shop.example"])
def test_excluded_domains_and_their_subdomains(own: str) -> None:
    exclusions = Exclusions([], [], [own])
    assert exclusions
    for host in ("shop.example", "SHOP.example", "www.shop.example", "a.b.shop.example", "shop.example."):
        assert reason(exclusions, {"campaign": {"source": host}}) == "excluded_domain"
        came_from = {"campaign": {"source": "x"}, "page": {"referrer": f"https://user@{host}:8443/cart?x=1"}}
        assert reason(exclusions, came_from) == "excluded_domain"
    for host in ("workshop.example", "shop.example.net", "example", "shop-example", "xn--shop.example-x"):
        assert reason(exclusions, {"campaign": {"source": host}}) is None
        assert reason(exclusions, {"campaign": {"source": "x"}, "page": {"referrer": f"https://{host}/"}}) is None


@pytest.mark.parametrize("own", ["bücher.example", "BÜCHER.example", "xn--bcher-kva.example", "XN--BCHER-KVA.Example."])
@pytest.mark.parametrize(
    "host", ["bücher.example", "www.Bücher.example", "xn--bcher-kva.example", "a.XN--BCHER-KVA.EXAMPLE"]
)
def test_an_excluded_domain_is_the_same_in_letters_and_in_punycode(own: str, host: str) -> None:
    exclusions = Exclusions([], [], [own])
    assert reason(exclusions, {"campaign": {"source": host}}) == "excluded_domain"
    for referrer in (f"https://{host}/x", host, f"//{host}:443/", "https://www.b%C3%BCcher.example/"):
        came_from = {"campaign": {"source": "x"}, "page": {"referrer": referrer}}
        assert reason(exclusions, came_from) == "excluded_domain"
    for other in ("bucher.example", "https://b\u00fccher.example.net/", "https://xn--bcher-kva.example.net/"):
        assert reason(exclusions, {"campaign": {"source": "x"}, "page": {"referrer": other}}) is None


@pytest.mark.parametrize(
    "referrer",
    [
        "shop.example", "www.shop.example/x", "Shop.Example:8443/cart", "//shop.example/", " shop.example?x=1 ",
        "shop.example#top", "android-app://shop.example/", "https://user:password@shop.example/",
    ],
)  # fmt: skip
def test_a_referrer_may_do_without_a_scheme(referrer: str) -> None:
    exclusions = Exclusions([], [], ["shop.example"])
    assert reason(exclusions, {"campaign": {"source": "x"}, "page": {"referrer": referrer}}) == "excluded_domain"


@pytest.mark.parametrize(
    "referrer",
    [
        None, 7, [], "", "http://[::1", "https://", "https://?shop.example", "x" * 100_000, "/shop.example",
        "mailto:a@shop.example", "a@shop.example", "about:shop.example", "shop.example@other.example",
        "other.example/shop.example", "https://other.example/https://shop.example/",
    ],
)  # fmt: skip
def test_a_referrer_that_names_no_host_excludes_nothing(referrer: Any) -> None:
    exclusions = Exclusions([], [], ["shop.example"])
    assert reason(exclusions, {"campaign": {"source": "x"}, "page": {"referrer": referrer}}) is None
    assert reason(exclusions, {"campaign": {"source": "x"}, "page": referrer}) is None


def test_a_blank_exclusion_excludes_nothing() -> None:
    exclusions = Exclusions([" "], [""], [".", ""])
    assert not exclusions
    assert reason(exclusions, {"campaign": {"name": "without source, medium and referrer"}}) is None
