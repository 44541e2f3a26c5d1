"""Budgets of costly signature checks: failures use them up, but never the budget of another."""

from __future__ import annotations

import asyncio

import pytest

from ingestd.api.errors import Limited, Unavailable
from ingestd.plugins.auth.costly_checks import Caller, CostlyChecks

SECOND = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now


def caller(key: str = "key", peer: str = "203.0.113.7") -> Caller:
    return Caller.of(key, peer)


def admits(checks: CostlyChecks, who: Caller) -> bool:
    try:
        checks.admit(who)
    except Limited:
        return False
    return True


def fails(checks: CostlyChecks, who: Caller, cost: int = 1) -> bool:
    """Make a check that fails, if it is admitted. Returns whether it is."""
    if not admits(checks, who):
        return False
    checks.failed(who, cost)
    return True


def test_an_address_has_a_burst_and_then_its_rate_over_all_keys() -> None:
    clock = Clock()
    checks = CostlyChecks(clock=clock)
    assert sum(fails(checks, caller(f"key {number % 10}")) for number in range(1000)) == 64
    clock.now += SECOND
    assert sum(fails(checks, caller()) for _ in range(1000)) == 16
    assert fails(checks, caller(peer="203.0.113.8"))


def test_an_ipv6_network_of_64_bits_counts_as_one_address() -> None:
    checks = CostlyChecks(clock=Clock())
    assert sum(fails(checks, caller(peer=f"2001:db8::{number:x}")) for number in range(1000)) == 64
    assert fails(checks, caller(peer="2001:db8:0:1::1"))


def test_success_takes_nothing() -> None:
    checks = CostlyChecks(clock=Clock())
    for _ in range(1000):
        checks.admit(caller())
        checks.succeeded(caller())
    assert fails(checks, caller(), 64)


def test_strangers_share_the_budget_of_a_key_and_its_owner_has_a_separate_one() -> None:
    checks = CostlyChecks(clock=Clock())
    checks.succeeded(caller(peer="198.51.100.1"))
    flood = [caller(peer=f"192.0.{number // 250}.{number % 250}") for number in range(1000)]
    assert sum(fails(checks, who) for who in flood) == 512
    assert not admits(checks, caller(peer="198.51.100.2"))
    assert admits(checks, caller("another key", "198.51.100.2"))
    assert sum(fails(checks, caller(peer="198.51.100.1")) for _ in range(1000)) == 64


def test_a_refusal_says_when_to_retry() -> None:
    clock = Clock()
    checks = CostlyChecks(clock=clock)
    checks.failed(caller(), 1)
    checks.failed(caller(), 110)  # 47 more than the rest of the budget
    with pytest.raises(Limited) as refused:
        checks.admit(caller())
    assert refused.value.retry_after == 3
    clock.now += 3 * SECOND
    checks.admit(caller())


def test_the_last_ten_thousand_successful_callers_are_remembered() -> None:
    checks = CostlyChecks(clock=Clock())
    for number in range(10_001):
        checks.succeeded(caller(f"key {number}"))
    checks.failed(caller("a stranger's"), 64)  # uses up the budget of the address
    assert [admits(checks, caller(f"key {number}")) for number in (0, 1, 10_000)] == [False, True, True]


async def test_checks_take_turns_and_too_many_are_refused() -> None:
    checks = CostlyChecks(clock=Clock())
    at_work = most = 0

    async def check(number: int) -> int:
        nonlocal at_work, most
        try:
            async with checks.turn(caller(f"key {number}")):
                at_work += 1
                most = max(most, at_work)
                await asyncio.sleep(0)
                at_work -= 1
        except Unavailable as unavailable:
            return unavailable.status
        return 200

    statuses = await asyncio.gather(*map(check, range(80)))
    assert most == 1
    assert statuses == [200] * 64 + [503] * 16
    assert await check(0) == 200


async def test_a_cancelled_check_passes_its_turn_to_others() -> None:
    checks = CostlyChecks(clock=Clock())

    async def check() -> None:
        async with checks.turn(caller()):
            pass

    async with checks.turn(caller()):
        waiting = asyncio.create_task(check())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await check()
