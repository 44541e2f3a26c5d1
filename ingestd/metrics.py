"""What Prometheus sees. docs/metrics.md describes each; children are bound once, not per event."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from . import __version__
from .events import Endpoint
from .outcomes import Outcome

__all__ = ["Metrics", "SinkStatus"]


class SinkStatus(Protocol):
    """What is shown of a sink, read at each scrape."""

    @property
    def sink_name(self) -> str: ...
    @property
    def delivered(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def oldest_pending_seconds(self) -> float: ...
    @property
    def dead_letters(self) -> int: ...


class Metrics:
    """The daemon's own metrics, in a registry of their own: no two daemons in one process share one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self._events = Counter(
            "ingestd_events",
            "Requests to /track and /customer-events by what became of them.",
            ["endpoint", "key", "outcome"],
            registry=self.registry,
        )
        self._identifies = Counter(
            "ingestd_identifies", "Requests to /identify/public by outcome.", ["outcome"], registry=self.registry
        )
        durations = Histogram(
            "ingestd_http_request_duration_seconds",
            "From the last byte of a request to its answer.",
            ["endpoint"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )
        self._observe = {endpoint: durations.labels(endpoint.value).observe for endpoint in Endpoint}
        self._count: dict[tuple[Endpoint, str, Outcome], Callable[[], None]] = {}
        self.waiting = Gauge(
            "ingestd_waiting_events", "Events waiting for their commit at this moment.", registry=self.registry
        )
        Gauge(
            "ingestd_build_info", "1; the labels tell the version.", ["version", "python"], registry=self.registry
        ).labels(__version__, platform.python_version()).set(1)

    def answered(self, endpoint: Endpoint, key: str, outcome: Outcome, seconds: float) -> None:
        """Count one request; `key` is a known event key or empty."""
        count = self._count.get((endpoint, key, outcome))
        if count is None:
            if endpoint is Endpoint.IDENTIFY:
                count = self._identifies.labels(outcome.value).inc
            else:
                count = self._events.labels(endpoint.value, key, outcome.value).inc
            self._count[endpoint, key, outcome] = count
        count()
        self._observe[endpoint](seconds)

    def show_sinks(self, sinks: Iterable[SinkStatus]) -> None:
        """Show these sinks at every scrape."""
        self.registry.register(_SinkCollector(tuple(sinks)))


class _SinkCollector(Collector):
    def __init__(self, sinks: tuple[SinkStatus, ...]) -> None:
        self._sinks = sinks

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        families = self._families()
        for sink in self._sinks:
            values = (sink.delivered, sink.retries, sink.pending, sink.oldest_pending_seconds, sink.dead_letters)
            for family, value in zip(families, values, strict=True):
                family.add_metric([sink.sink_name], value)
        yield from families

    @staticmethod
    def _families() -> list[CounterMetricFamily | GaugeMetricFamily]:
        return [
            CounterMetricFamily("ingestd_sink_delivered", "Records the sink has taken.", labels=["sink"]),
            CounterMetricFamily("ingestd_sink_retries", "Writes that failed and were tried again.", labels=["sink"]),
            GaugeMetricFamily("ingestd_sink_pending", "Records in the journal not yet in the sink.", labels=["sink"]),
            GaugeMetricFamily(
                "ingestd_sink_oldest_pending_seconds", "Age of the oldest of them, 0 if none.", labels=["sink"]
            ),
            GaugeMetricFamily("ingestd_sink_dead_letters", "Records given up for this sink.", labels=["sink"]),
        ]
