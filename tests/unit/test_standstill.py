"""A process that stood still for minutes says so."""

from __future__ import annotations

import time

import pytest

from ingestd.daemon.clocks import Clocks
from ingestd.observability.metrics import Metrics


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
