"""A process that stood still for minutes says so, and a jump is followed if it ends a difference to the store."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.daemon.clocks import Clocks
from ingestd.observability.metrics import Metrics

DAY = 86_400_000


@pytest.mark.logs("this process stood still for 3 min")
def test_minutes_without_a_step_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, now = Clocks([], Metrics()), time.monotonic()
    for seconds in (0, 59, 59 + 180, 59 + 181):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + seconds)
        clocks.look()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "ingestd.clocks"]
    assert line.startswith("this process stood still for 3 min: something has stopped it")


@pytest.mark.logs("ingestd.clocks WARNING")
@pytest.mark.parametrize(
    ("before", "at_the_jump", "jump", "is_followed"),
    [
        (DAY, DAY, DAY, True),
        (-DAY, -DAY, -DAY, True),
        (DAY, DAY, DAY // 2, False),
        (0, 0, DAY, False),
        (0, DAY, DAY, False),  # a store on the same machine, which jumps too
        (DAY, DAY, -DAY, False),
    ],
)
def test_a_jump_is_followed_if_it_ends_a_difference_to_the_store(
    monkeypatch: pytest.MonkeyPatch, before: int, at_the_jump: int, jump: int, is_followed: bool
) -> None:
    store = SimpleNamespace(clock_ahead=before)
    clocks = Clocks([cast("Partition", SimpleNamespace(store=store))], Metrics())
    monkeypatch.setattr(times, "keep_own_clock", lambda: None)
    for ahead, store_ahead in ((0, before), (jump, at_the_jump)):
        monkeypatch.setattr(times, "system_clock_ahead", lambda ahead=ahead: ahead)
        store.clock_ahead = store_ahead
        clocks.look()
    assert clocks.jump == (0 if is_followed else jump)
    if not is_followed:
        store.clock_ahead = jump
        clocks.look()
        assert clocks.jump == jump
