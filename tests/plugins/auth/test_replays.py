"""Replays of signed events: the `timestamp` and `messageId` that the configuration requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest
from ingestd.api.events import MESSAGE_LIFE
from ingestd.api.options import Duration
from ingestd.api.times import format_time, parse_time
from ingestd.plugins.auth.replays import ReplayRules

NOW = parse_time("2026-03-01T12:00:00Z") or 0
SECOND, MINUTE = 1000, 60_000
DAY = Duration.parse("24h")


def refusal(rules: ReplayRules, body: Mapping[str, Any], at: int = NOW) -> tuple[str, list[str]] | None:
    """The code and the pointers of the refusal, None if the body is accepted."""
    try:
        rules.check(body, at)
    except BadRequest as refused:
        return refused.code, [fault.pointer for fault in refused.errors]
    return None


def sent(at: int) -> dict[str, Any]:
    return {"timestamp": format_time(at)}


def test_without_options_there_is_nothing_to_check() -> None:
    assert not ReplayRules(max_age=None, require_message_id=False)
    assert ReplayRules(max_age=DAY, require_message_id=False)
    assert ReplayRules(max_age=None, require_message_id=True)


@given(
    st.integers(1, 10**9),
    st.integers(-(10**9), 10**9) | st.sampled_from([-5 * MINUTE, -5 * MINUTE - 1]),
)
def test_a_time_is_taken_from_max_age_ago_to_a_little_ahead(max_age: int, ago: int) -> None:
    rules = ReplayRules(max_age=Duration(max_age / 1000), require_message_id=False)
    taken = -min(max_age, 5 * MINUTE) <= ago <= max_age
    assert refusal(rules, sent(NOW - ago)) == (None if taken else ("stale_timestamp", ["/timestamp"]))


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9), st.integers(-(10**9), 10**9))
def test_a_copy_is_too_old_before_its_message_is_forgotten(max_age: int, later: int, ago: int) -> None:
    rules = ReplayRules(max_age=Duration(max_age / 1000), require_message_id=True)
    body = {"messageId": "m", "timestamp": format_time(NOW - ago)}
    assume(refusal(rules, body) is None)
    for after in (later, max_age - ago, max_age + 5 * MINUTE):  # the second is the last moment at which a copy is taken
        if after >= 0 and refusal(rules, body, NOW + after) is None:
            assert after + 5 * MINUTE <= rules.message_life, "another daemon's clock may differ by five minutes"


def test_without_max_age_messages_are_remembered_as_those_of_public_keys() -> None:
    assert ReplayRules(max_age=None, require_message_id=True).message_life == MESSAGE_LIFE


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"timestamp": None},
        {"timestamp": NOW},
        {"timestamp": ""},
        {"timestamp": "2026-03-01"},
        {"timestamp": "2026-03-01T12:00:00"},
        {"timestamp": ["2026-03-01T12:00:00Z"]},
        {"Timestamp": "2026-03-01T12:00:00Z"},
        {"context": {"timestamp": "2026-03-01T12:00:00Z"}},
    ],
)
def test_with_max_age_a_time_must_be_there_and_readable(body: dict[str, Any]) -> None:
    rules = ReplayRules(max_age=DAY, require_message_id=False)
    assert refusal(rules, body) == ("invalid_envelope", ["/timestamp"])


def test_the_zone_of_a_time_does_not_matter() -> None:
    rules = ReplayRules(max_age=Duration.parse("1m"), require_message_id=False)
    assert refusal(rules, {"timestamp": "2026-03-01T14:00:00+02:00"}) is None
    assert refusal(rules, {"timestamp": "2026-03-01T12:00:00+02:00"}) == ("stale_timestamp", ["/timestamp"])


def test_a_message_id_may_be_required() -> None:
    rules = ReplayRules(max_age=None, require_message_id=True)
    assert refusal(rules, {"messageId": "m-1"}) is None
    assert refusal(rules, {"key": "Page View"}) == ("invalid_envelope", ["/messageId"])


def test_all_faults_are_reported_at_once() -> None:
    rules = ReplayRules(max_age=DAY, require_message_id=True)
    assert refusal(rules, {}) == ("invalid_envelope", ["/messageId", "/timestamp"])
    assert refusal(rules, sent(NOW - 86_400_001)) == ("invalid_envelope", ["/messageId", "/timestamp"])
    assert refusal(rules, {**sent(NOW - 86_400_001), "messageId": "m"}) == ("stale_timestamp", ["/timestamp"])
