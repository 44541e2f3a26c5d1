"""What has been counted of requests at one moment, as plain numbers: for what is reckoned in the daemon itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import Counter, Histogram

__all__ = ["BOUNDS", "Counts", "read_counts"]

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds: of the buckets that durations are counted in."""


class Counts(NamedTuple):
    """Since the start of the daemon."""

    events: Mapping[tuple[str, str], float]
    """By event key, which may be empty, and outcome."""
    identifies: Mapping[str, float]
    """By outcome."""
    durations: Mapping[str, tuple[float, ...]]
    """Of each operation, how many took at most each of `BOUNDS`, and how many there were."""
    sessions: float
    """That have begun."""


def read_counts(events: Counter, identifies: Counter, durations: Histogram, sessions: Counter) -> Counts:
    by_key: dict[tuple[str, str], float] = {}
    for labels, value in _samples(events, "_total"):
        name = labels["key"], labels["outcome"]
        by_key[name] = by_key.get(name, 0.0) + value
    buckets: dict[str, list[float]] = {}
    for labels, value in _samples(durations, "_bucket"):  # the library has them in the order of their bounds
        buckets.setdefault(labels["endpoint"], []).append(value)
    return Counts(
        events=by_key,
        identifies={labels["outcome"]: value for labels, value in _samples(identifies, "_total")},
        durations={operation: tuple(values) for operation, values in buckets.items()},
        sessions=sum(value for _, value in _samples(sessions, "_total")),
    )


def _samples(metric: Counter | Histogram, suffix: str) -> list[tuple[Mapping[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(suffix)
    ]
