"""The daemon's memory over many events: a short form of `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.soak import Sample, growth

ROOT = Path(__file__).parents[2]

# After 20,000 events a leak of some 300 bytes an event would show.
MOST_GROWTH_MIB = 6


def test_memory_is_flat_once_caches_are_full() -> None:
    """Ten thousand events of 4 kB fill SQLite's page cache, and random visitors fill the cache of the state."""
    options = {
        "events": 30_000, "every": 2_500, "warm-up": 10_000, "cache": "512KiB", "visitors": 5_000, "padding": 4_000,
        "bound": MOST_GROWTH_MIB,
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.soak", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat: " in done.stdout


def test_growth_is_the_maximum_after_the_warm_up_minus_the_value_at_its_end() -> None:
    samples = [Sample(10, 100), Sample(20, 500), Sample(30, 510), Sample(40, 530), Sample(50, 490)]
    assert growth(samples, 0) == 430
    assert growth(samples, 20) == 30
    assert growth(samples, 25) == 20
    assert growth(samples, 50) == 0
