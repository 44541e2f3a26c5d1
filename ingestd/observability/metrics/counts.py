"""What is counted of every request, in plain numbers: the library's counters would take as long as the session does.

The event loop counts; a scrape, or whoever shows it, reads on another thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestd.api.distribution import Distribution
from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome

__all__ = ["BOUNDS", "Counts", "RequestCounter"]

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds: of the buckets that durations are counted in."""


class Counts(NamedTuple):
    """What has been counted at one moment, since the start of the daemon."""

    events: Mapping[tuple[str, str], float]
    """By event key, which may be empty, and outcome."""
    identifies: Mapping[str, float]
    """By outcome."""
    durations: Mapping[str, tuple[float, ...]]
    """Of each operation, how many took at most each of `BOUNDS`, and how many there were."""
    sessions: float
    """That have begun."""


class RequestCounter(Collector):
    def __init__(self) -> None:
        self.sessions = 0
        """That have begun."""
        self._outcomes: Counter[tuple[Endpoint, str, Outcome]] = Counter()
        self._durations = {(endpoint, False): Distribution(BOUNDS) for endpoint in Endpoint}
        for endpoint in (Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS):
            self._durations[endpoint, True] = Distribution(BOUNDS)

    def answered(
        self, endpoint: Endpoint, key: str, outcome: Outcome, events: int, seconds: float, *, batch: bool
    ) -> None:
        """As `count` and `took`, which is what most requests are."""
        self._outcomes[endpoint, key, outcome] += events
        self._durations[endpoint, batch].add(seconds)

    def count(self, endpoint: Endpoint, key: str, outcome: Outcome, events: int) -> None:
        self._outcomes[endpoint, key, outcome] += events

    def took(self, endpoint: Endpoint, seconds: float, *, batch: bool) -> None:
        self._durations[endpoint, batch].add(seconds)

    def accepted(self) -> int:
        """Events, so far."""
        return sum(
            count
            for (endpoint, _, outcome), count in self._outcomes.items()
            if outcome is Outcome.ACCEPTED and not endpoint.identifies
        )

    def counts(self) -> Counts:
        """The present ones, on any thread."""
        events: Counter[tuple[str, str]] = Counter()
        identifies: Counter[str] = Counter()
        for (endpoint, key, outcome), count in self._outcomes.copy().items():
            if endpoint.identifies:
                identifies[outcome.value] += count
            else:
                events[key, outcome.value] += count
        durations = {name: each.cumulative() for name, each in self._by_operation()}
        return Counts(events, identifies, durations, self.sessions)

    def _by_operation(self) -> Iterator[tuple[str, Distribution]]:
        for (endpoint, batch), durations in self._durations.items():
            yield endpoint.operation(batch=batch), durations

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "ingestd_events",
            "Events sent to /track and /customer-events, also in batches, by what became of them.",
            labels=["endpoint", "key", "outcome"],
        )
        identifies = CounterMetricFamily(
            "ingestd_identifies", "Identify requests, also in batches, by what became of them.", labels=["outcome"]
        )
        identified: Counter[str] = Counter()  # of both endpoints
        for (endpoint, key, outcome), count in self._outcomes.copy().items():
            if endpoint.identifies:
                identified[outcome.value] += count
            else:
                events.add_metric([endpoint.value, key, outcome.value], count)
        for name, count in identified.items():
            identifies.add_metric([name], count)
        durations = HistogramMetricFamily(
            "ingestd_http_request_duration_seconds",
            "From the last byte of a request to its answer.",
            labels=["endpoint"],
        )
        for name, each in self._by_operation():
            durations.add_metric([name], each.buckets(), each.sum)
        sessions = CounterMetricFamily(
            "ingestd_sessions_begun",
            "Sessions that events and identify requests, also in batches, have begun.",
            self.sessions,
        )
        yield from (events, identifies, durations, sessions)
