"""The last errors: one row for each kind, no row displaced by a noisy logger, each with an id to find it."""

from __future__ import annotations

import logging
import re
import string
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.plugins.console.recent_lines import RecentLines
from ingestd.support.message_kinds import message_kind

QUOTABLE = st.text(string.ascii_letters + string.digits + " .,:/-_", min_size=1, max_size=30)
HEX = st.text("0123456789abcdef", min_size=4, max_size=64)
ALPHANUMERIC = st.text(string.ascii_letters + string.digits, min_size=1, max_size=22).filter(
    lambda text: any(map(str.isdigit, text))
)
IDS = st.one_of(
    st.uuids().map(str),
    st.uuids().map(lambda each: each.hex),
    HEX,
    HEX.map(str.upper),
    HEX.map("0x{}".format),
    ALPHANUMERIC,
    st.tuples(st.sampled_from(["ord", "SKU", "c"]), ALPHANUMERIC).map("_".join),
    st.tuples(st.sampled_from(["ord", "SKU", "c"]), ALPHANUMERIC).map("-".join),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
    st.datetimes().map(lambda each: f"{each.isoformat()}Z"),
)
QUOTED = st.one_of(
    QUOTABLE.map("'{}'".format),
    QUOTABLE.map('"{}"'.format),
    QUOTABLE.map("`{}`".format),
    QUOTABLE.map("“{}”".format),
    QUOTABLE.map(lambda text: repr(text.encode())),
)
ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)).map(lambda each: f"{each[0]}:{each[1]}"),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 65535)).map(lambda each: f"[{each[0]}]:{each[1]}"),
    st.emails().filter(lambda each: re.fullmatch(r"[\w.+-]+@.*", each) is not None),
)
PATHS = st.lists(st.text(string.ascii_letters + "._-", min_size=1, max_size=9), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
PAIRS = st.one_of([st.tuples(each, each) for each in (IDS, QUOTED, ADDRESSES, PATHS)])
TEMPLATES = [
    "the order {} of shop was sent again; its attribution {} keeps the first",
    "sink:crm: no customer {}; it is tried again (failure {} in a row)",
    "HTTP 500: request id={}, trace={}",
    "{} is not known [{}]",
    "plugin shop_tools: enrich failed: LookupError({})",
]


@pytest.fixture
def lines() -> Iterator[RecentLines]:
    kept = RecentLines()
    logging.getLogger("of").addHandler(kept)
    yield kept
    logging.getLogger("of").removeHandler(kept)


def write(message: str, logger: str = "of.this", **fields: str) -> None:
    logging.getLogger(logger).warning("%s", message, extra={"ingestd_fields": fields})


@given(st.sampled_from(TEMPLATES), PAIRS, PAIRS)
def test_messages_that_differ_in_ids_only_are_one_kind(
    template: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    one, other = zip(first, second, strict=True)
    assert message_kind(template.format(*one)) == message_kind(template.format(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sink:crm1: connection refused", "sink:crm2: connection refused"),
        ("plugin s3: health failed", "plugin k8s: health failed"),
        ("connection refused after 3 s", "connection reset after 3 s"),
        ("LookupError: 'a'", "KeyError: 'a'"),
        ("it can't be, it's full", "it can't be, it's gone"),
        ("the disk is full", "the disk is failing"),
    ],
)
def test_messages_that_differ_in_more_are_different_kinds(one: str, other: str) -> None:
    assert message_kind(one) != message_kind(other)


@given(st.text(max_size=400))
def test_every_message_has_a_kind_of_bounded_length(message: str) -> None:
    assert len(message_kind(message)) <= 300


@pytest.mark.logs("^of")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(IDS, min_size=1, max_size=60))
def test_one_row_counts_all_of_a_kind(ids: list[str]) -> None:
    kept = RecentLines()
    logging.getLogger("of").addHandler(kept)
    try:
        for each in ids:
            write(f"no customer {each} in the ledger")
    finally:
        logging.getLogger("of").removeHandler(kept)
    (row,) = kept.newest_first()
    assert row.times == len(ids)
    assert ids[-1] in row.message


@pytest.mark.logs("^of")
def test_text_after_the_limit_makes_no_difference(lines: RecentLines) -> None:
    for number in range(8):
        write(f"no customer {10**number}: {'a long tale ' * 60}")
    assert [row.times for row in lines.newest_first()] == [8]


@pytest.mark.logs("^of")
def test_a_noisy_logger_pushes_no_other_out(lines: RecentLines) -> None:
    for name in ("of.store", "of.sinks"):
        write(f"{name} is failing", name)
    for one in string.ascii_lowercase:
        for other in string.ascii_lowercase:
            write(f"a tale of {one} and {other}", "of.noise")
    rows = lines.newest_first()
    assert len(rows) == 20
    assert [row.logger for row in rows] == ["of.noise"] * 18 + ["of.sinks", "of.store"]
    assert rows[0].message == "a tale of z and z"


@pytest.mark.logs("^of")
def test_a_noisy_sink_pushes_no_other_sink_out(lines: RecentLines) -> None:
    write("sink:crm: connection refused", "of.consumers")
    for one in string.ascii_lowercase:
        for other in string.ascii_lowercase:
            write(f"sink:erp: {one} and {other} do not match", "of.consumers")
    messages = [row.message for row in lines.newest_first()]
    assert messages[-1] == "sink:crm: connection refused"
    assert [message[:9] for message in messages[:-1]] == ["sink:erp:"] * 19


@pytest.mark.logs("^of")
def test_the_kind_that_was_seen_longest_ago_goes_and_its_count_is_kept_a_while(lines: RecentLines) -> None:
    write("tale a")
    write("tale a")
    for letter in string.ascii_lowercase[1:22]:
        write(f"tale {letter}")
    assert [row.message for row in lines.newest_first()] == [f"tale {each}" for each in "vutsrqponmlkjihgfedc"]
    write("tale a")
    assert (lines.newest_first()[0].message, lines.newest_first()[0].times) == ("tale a", 3)


@pytest.mark.logs("^of")
def test_a_row_has_the_id_of_its_newest_line(lines: RecentLines) -> None:
    write("no customer 1", record_id="r-1")
    write("no customer 2", record_id="r-2")
    write("a request failed", request_id="q-1")
    failed, customer = lines.newest_first()
    assert (failed.request_id, failed.record_id) == ("q-1", None)
    assert (customer.request_id, customer.record_id, customer.times) == (None, "r-2", 2)
