"""Rate limits: a caller within the rate is never refused, and a caller above it gets exactly the rate."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError, Limited
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.plugins.rate_limit import RateLimitPlugin
from ingestd.plugins.token_buckets import Rate, TokenBuckets

Options = RateLimitPlugin.Options
SECOND = 10**9


class Gate:
    """The plugin, with a clock that a test sets."""

    def __init__(self, options: Options) -> None:
        self.now = 1000 * SECOND
        self._plugin = RateLimitPlugin(options, clock=lambda: self.now)

    def refusal(self, key: str | None = "key", peer: str = "203.0.113.7") -> Limited | None:
        request = Request(Endpoint.TRACK, {}, b"", received_at=0, peer=peer)
        try:
            self._plugin.screen(request)
            self._plugin.admit(request, None if key is None else Principal("shop", key))
        except Limited as limited:
            return limited
        return None

    def admits(self, key: str | None = "key", peer: str = "203.0.113.7") -> bool:
        return self.refusal(key, peer) is None


def rate(text: str) -> Rate:
    return Rate.parse(text)


# The buckets, compared with a plain model of a bucket

rates = st.builds("{}/{}".format, st.integers(1, 1000) | st.integers(1, 999_999_999), st.sampled_from("smhd")).map(rate)
bursts = st.integers(1, 20)
pauses = st.lists(st.integers(0, 3 * SECOND) | st.integers(0, 10**14) | st.just(0), max_size=60)


class Model:
    """A token bucket by its textbook definition, in exact fractions."""

    def __init__(self, rate: Rate, burst: int) -> None:
        self.per_nanosecond = Fraction(rate.number, rate.period)
        self.burst = burst
        self.tokens = Fraction(burst)

    def passes(self, nanoseconds: int) -> None:
        self.tokens = min(Fraction(self.burst), self.tokens + nanoseconds * self.per_nanosecond)

    def takes(self) -> bool:
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def admitted(buckets: TokenBuckets, name: str, now: int) -> bool:
    if buckets.wait(name, now) > 0:
        return False
    buckets.take(name, now)
    return True


@given(rates, bursts, st.lists(st.tuples(st.integers(0, 3 * SECOND) | st.integers(0, 10**14), st.sampled_from("abc"))))
def test_a_bucket_agrees_with_the_textbook(rate: Rate, burst: int, requests: Sequence[tuple[int, str]]) -> None:
    buckets = TokenBuckets(rate, burst)
    models = {name: Model(rate, burst) for name in "abc"}
    now = 0
    for pause, name in requests:
        now += pause
        for model in models.values():
            model.passes(pause)
        assert admitted(buckets, name, now) == models[name].takes()


@given(rates, bursts, pauses)
def test_no_stretch_of_time_has_more_than_the_burst_and_the_rate_times_the_time(
    rate: Rate, burst: int, pauses: Sequence[int]
) -> None:
    buckets = TokenBuckets(rate, burst)
    now, times = 0, []
    for pause in pauses:
        now += pause
        if admitted(buckets, "a", now):
            times.append(now)
    for first, since in enumerate(times):
        for count, until in enumerate(times[first:], 1):
            assert count <= burst + Fraction(rate.number * (until - since), rate.period)


@given(rates, bursts, pauses)
def test_a_caller_within_the_rate_is_never_refused(rate: Rate, burst: int, pauses: Sequence[int]) -> None:
    buckets = TokenBuckets(rate, burst)
    interval = -(-rate.period // rate.number)
    now = 0
    for pause in pauses:
        now += interval + pause
        assert admitted(buckets, "a", now)


@given(rates, bursts, pauses)
def test_the_wait_is_the_least_that_suffices(rate: Rate, burst: int, pauses: Sequence[int]) -> None:
    buckets = TokenBuckets(rate, burst)
    now = 0
    for pause in pauses:
        now += pause
        wait = buckets.wait("a", now)
        if wait > 0:
            assert buckets.wait("a", now + wait - 1) > 0
            now += wait
        assert admitted(buckets, "a", now)


batches = st.lists(st.tuples(st.integers(0, 10**14), st.integers(1, 60)), max_size=40)


@given(rates, bursts, batches)
def test_no_stretch_of_time_has_more_than_the_largest_batch_or_the_burst_and_the_rate_times_the_time(
    rate: Rate, burst: int, batches: Sequence[tuple[int, int]]
) -> None:
    buckets = TokenBuckets(rate, burst)
    now, taken = 0, []
    for pause, count in batches:
        now += pause
        if buckets.wait("a", now, count) == 0:
            buckets.take("a", now, count)
            taken.append((now, count))
    for first, (since, _) in enumerate(taken):
        total, largest = 0, burst
        for until, count in taken[first:]:
            total, largest = total + count, max(largest, count)
            assert total <= largest + Fraction(rate.number * (until - since), rate.period)


@given(rates, bursts, batches)
def test_a_batch_of_any_size_is_taken_once_its_wait_is_over(
    rate: Rate, burst: int, batches: Sequence[tuple[int, int]]
) -> None:
    buckets = TokenBuckets(rate, burst)
    now = 0
    for pause, count in batches:
        now += pause
        wait = buckets.wait("a", now, count)
        if wait > 0:
            assert buckets.wait("a", now + wait - 1, count) > 0
            now += wait
        assert buckets.wait("a", now, count) == 0
        buckets.take("a", now, count)


def test_full_buckets_are_forgotten() -> None:
    buckets = TokenBuckets(rate("10/s"), 5)
    for number in range(10_000):
        assert admitted(buckets, f"visitor {number}", number * SECOND // 100)
    assert len(buckets) <= 20  # a bucket is full again a tenth of a second after its only request


def test_beyond_the_limit_the_least_recently_used_buckets_are_forgotten() -> None:
    buckets = TokenBuckets(rate("1/d"), 2, most=3)
    for name in ["a", "b", "c", "a", "d"]:
        assert admitted(buckets, name, 0)
    assert len(buckets) == 3
    assert not admitted(buckets, "a", 0)
    assert [admitted(buckets, name, 0) for name in ["b", "b"]] == [True, True]  # forgotten, so full again
    assert len(buckets) == 3


def test_a_flood_from_many_addresses_keeps_a_hundred_thousand_buckets() -> None:
    buckets = TokenBuckets(rate("1/d"), 1)
    for number in range(101_000):
        assert admitted(buckets, f"visitor {number}", number)
    assert len(buckets) == 100_000


# The plugin


def test_without_a_rate_nothing_is_refused() -> None:
    gate = Gate(Options())
    assert all(gate.admits() for _ in range(1000))


def test_each_key_has_its_rate_from_all_addresses() -> None:
    gate = Gate(Options(per_key=rate("2/s")))
    assert [gate.admits("a", f"203.0.113.{n}") for n in range(3)] == [True, True, False]
    assert gate.admits("b")
    gate.now += SECOND // 2
    assert [gate.admits("a") for _ in range(2)] == [True, False]


def test_each_address_has_its_rate_for_all_keys() -> None:
    gate = Gate(Options(per_address=rate("2/s")))
    assert [gate.admits(key) for key in ("a", "b", "c", None)] == [True, True, False, False]
    assert gate.admits("a", "203.0.113.8")


def test_each_ipv6_network_of_64_bits_is_one_address() -> None:
    gate = Gate(Options(per_address=rate("1/s")))
    peers = ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::", "2001:db8:0:1::1"]
    assert [gate.admits(peer=peer) for peer in peers] == [True, False, False, True]


def test_a_caller_without_address_has_no_rate_per_address() -> None:
    gate = Gate(Options(per_address=rate("1/d")))
    assert all(gate.admits(peer="") for _ in range(10))


def test_an_unknown_caller_counts_for_the_address_only() -> None:
    gate = Gate(Options(per_key=rate("1/d"), per_address=rate("30/d")))
    assert [gate.admits(None) for _ in range(4)] == [True, True, True, False]
    assert gate.admits("a", "203.0.113.8")


def test_an_unknown_caller_counts_ten_times_and_may_owe_a_part() -> None:
    gate = Gate(Options(per_address=rate("60/m"), per_address_burst=15))
    assert [gate.admits(None) for _ in range(2)] == [True, True]  # five tokens more than the bucket had
    refusal = gate.refusal()
    assert refusal is not None
    assert refusal.retry_after == 6
    gate.now += 6 * SECOND
    assert [gate.admits() for _ in range(2)] == [True, False]


def test_an_address_over_its_rate_is_refused_before_other_work() -> None:
    now = 1000 * SECOND
    plugin = RateLimitPlugin(Options(per_address=rate("2/d"), per_key=rate("1/d")), clock=lambda: now)

    class Unread:
        size = 0

        def decode(self, most: int | None = None) -> bytes:
            raise AssertionError("the body was decoded")

        def free(self, content: bytes) -> None:
            raise AssertionError("the body was decoded")

    request = Request(Endpoint.TRACK, {}, Unread(), received_at=0, peer="203.0.113.7")
    for _ in range(10):
        plugin.screen(request)  # takes no token
    plugin.admit(request, None)
    with pytest.raises(Limited, match="address"):
        plugin.screen(request)
    plugin.screen(Request(Endpoint.TRACK, {}, Unread(), received_at=0, peer="203.0.113.8"))


def test_a_refusal_by_one_limit_does_not_count_for_the_other() -> None:
    gate = Gate(Options(per_key=rate("1/d"), per_address=rate("3/d")))
    assert [gate.admits("a") for _ in range(10)] == [True] + [False] * 9
    assert [gate.admits(key) for key in "bcd"] == [True, True, False]
    assert gate.admits("d", "203.0.113.8")


def test_the_answer_names_the_limit_and_the_wait_in_whole_seconds() -> None:
    gate = Gate(Options(per_key=rate("6/m"), per_key_burst=1))
    assert gate.admits()
    for passed, told in [(0, 10), (SECOND // 2, 10), (9 * SECOND, 1), (SECOND // 2 - 1, 1)]:
        gate.now += passed
        refusal = gate.refusal()
        assert refusal is not None
        assert refusal.retry_after == told
        assert "key" in refusal.detail
        assert "6/m" in refusal.detail
    gate.now += 1
    assert gate.admits()


def test_over_both_limits_the_answer_names_the_longer_wait() -> None:
    gate = Gate(Options(per_key=rate("1/m"), per_address=rate("1/h")))
    assert gate.admits()
    refusal = gate.refusal()
    assert refusal is not None
    assert "address" in refusal.detail
    assert refusal.retry_after == 3600
    gate.now += 3600 * SECOND
    assert gate.admits()


@pytest.mark.parametrize(("burst", "at_once"), [(None, 3), (1, 1), (7, 7)])
def test_the_burst_may_come_at_once(burst: int | None, at_once: int) -> None:
    gate = Gate(Options(per_key=rate("3/m"), per_key_burst=burst))
    assert [gate.admits() for _ in range(10)].count(True) == at_once


# Options


NO_RATES = [
    "", "100", "/s", "0/s", "01/s", "-1/s", "1.5/s", "1e3/s", "x/s", "\u0661/s", "1/w", "1/ms", "1/s/s", " 1/s", "1 /s",
    "1/s\n", "1000000000/s", 100, None, ["1/s"],
]  # fmt: skip


@pytest.mark.parametrize("text", NO_RATES)
def test_an_invalid_rate_is_refused_with_the_expected_form(text: object) -> None:
    with pytest.raises(ValueError, match=r'expected a whole number .* such as "100/s" or "6000/m"'):
        Rate.parse(text)


@given(st.integers(1, 999_999_999), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]))
def test_a_rate_is_read_and_shown_alike(count: int, unit: tuple[str, int]) -> None:
    read = rate(f"{count}/{unit[0]}")
    assert (read.number, read.period) == (count, unit[1] * SECOND)
    assert str(read) == f"{count}/{unit[0]}"


@pytest.mark.parametrize("by", ["key", "address"])
def test_a_burst_without_its_rate_is_a_mistake(by: str) -> None:
    options = Options(per_key_burst=5) if by == "key" else Options(per_address_burst=5)
    with pytest.raises(ConfigError, match=rf"plugins\.rate_limit\.per_{by}_burst: .* per_{by}$"):
        RateLimitPlugin(options)
