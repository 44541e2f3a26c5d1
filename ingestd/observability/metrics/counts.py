"""Counters of every request, as plain numbers: counters of `prometheus_client` cost as much as a session's resolution.

The event loop counts. A scrape or the operators' page reads on another thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome
from ingestd.support.distribution import Distribution

__all__ = ["BOUNDS", "Counts", "RequestCounter"]

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the duration buckets, in seconds."""


class Counts(NamedTuple):
    """The counts since the start of the daemon, at one moment."""

    events: Mapping[tuple[str, str], float]
    """Events by key, which may be empty, and outcome."""
    identifies: Mapping[str, float]
    """Identify requests by outcome."""
    durations: Mapping[str, tuple[float, ...]]
    """For each operation: the number of requests up to each of `BOUNDS`, then the number of all requests."""
    sessions: float
    """Sessions begun."""


class RequestCounter(Collector):
    def __init__(self) -> None:
        self.sessions = 0
        """Sessions begun."""
        self._outcomes: Counter[tuple[Endpoint, str, Outcome]] = Counter()
        self._durations = defaultdict(
            lambda: Distribution(BOUNDS),
            {(endpoint, False): Distribution(BOUNDS) for endpoint in Endpoint.BUILT_IN}
            | {(endpoint, True): Distribution(BOUNDS) for endpoint in (Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS)},
        )

    def count(self, endpoint: Endpoint, key: str, outcome: Outcome, events: int = 1) -> None:
        """Count events, or identify requests, with one outcome. `key` is a known event key, or empty."""
        self._outcomes[endpoint, key, outcome] += events

    def took(self, endpoint: Endpoint, seconds: float, *, batch: bool = False) -> None:
        """Count a request by the time until its answer."""
        self._durations[endpoint, batch].add(seconds)

    def accepted(self) -> int:
        """The number of events accepted since the start."""
        return sum(
            count
            for (endpoint, _, outcome), count in self._outcomes.items()
            if outcome is Outcome.ACCEPTED and not endpoint.identifies
        )

    def counts(self) -> Counts:
        """The present counts. Any thread may call it."""
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
        for (endpoint, batch), durations in self._durations.copy().items():
            yield endpoint.operation(batch=batch), durations

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "ingestd_events",
            "Events, also in batches, by outcome.",
            labels=["endpoint", "key", "outcome"],
        )
        identifies = CounterMetricFamily(
            "ingestd_identifies", "Identify requests, also in batches, by outcome.", labels=["outcome"]
        )
        identified: Counter[str] = Counter()  # all endpoints together
        for (endpoint, key, outcome), count in self._outcomes.copy().items():
            if endpoint.identifies:
                identified[outcome.value] += count
            else:
                events.add_metric([endpoint.value, key, outcome.value], count)
        for name, count in identified.items():
            identifies.add_metric([name], count)
        durations = HistogramMetricFamily(
            "ingestd_http_request_duration_seconds",
            "Time from the last byte of a request to its answer.",
            labels=["endpoint"],
        )
        for name, each in self._by_operation():
            durations.add_metric([name], each.buckets(), each.sum)
        sessions = CounterMetricFamily(
            "ingestd_sessions_begun",
            "Sessions begun by events and identify requests, also in batches.",
            self.sessions,
        )
        yield from (events, identifies, durations, sessions)
