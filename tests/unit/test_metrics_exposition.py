"""The text of metrics equals the text of the client library, without creation times."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary, generate_latest
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from ingestd.observability.metrics.exposition import Text

numbers = st.floats(allow_nan=False) | st.integers(-(10**20), 10**20)
CREATED = re.compile(r"(# (HELP|TYPE) )?(counted|timed|summed)_created\b")
texts = st.text(st.characters(codec="utf-8"), max_size=8)


def by_the_library(registry: CollectorRegistry) -> bytes:
    """As `generate_latest` has it, where the times of creation are gauges of their own."""
    lines = generate_latest(registry).decode().split("\n")
    return "\n".join(line for line in lines if not CREATED.match(line)).encode()


class Custom(Collector):
    """What a plugin's collector may show beside the usual."""

    def __init__(self, value: float, label: str, at: float | None) -> None:
        self._value, self._label, self._at = value, label, at

    def collect(self) -> Iterator[Metric]:
        unknown = UnknownMetricFamily("unknown", "of no type", labels=["of"])
        unknown.add_metric([self._label], self._value, timestamp=self._at)
        gauge = GaugeMetricFamily("file_created", 'no time of creation: a "gauge"\nof a plugin \\', labels=["of"])
        gauge.add_metric([self._label], self._value, timestamp=self._at)
        buckets = GaugeHistogramMetricFamily("sizes", "a histogram that may fall")
        buckets.add_metric([], [("1.0", 2), ("+Inf", 3)], 4)
        yield from (unknown, gauge, buckets)


@given(st.lists(st.tuples(texts, texts, numbers), max_size=5), st.none() | st.floats(0, 1e10))
def test_the_text_equals_the_text_of_the_library(changes: list[tuple[str, str, float]], at: float | None) -> None:
    registry = CollectorRegistry()
    counter = Counter("counted", "a \\ in\nits help", ["one", "two"], registry=registry)
    gauge = Gauge("level", "how high", ["one"], registry=registry)
    histogram = Histogram("timed", "how long", ["one"], buckets=(0.1, 1), registry=registry)
    summary = Summary("summed", "how much", registry=registry)
    Info("build", "what it is", registry=registry).info({"version": "1"})
    Enum("phase", "where it is", states=["begun", "done"], registry=registry)
    text = Text()
    assert text.render(registry.collect()) == by_the_library(registry)
    for one, two, number in changes:
        counter.labels(one, two).inc(abs(number))
        gauge.labels(one).set(number)
        histogram.labels(two).observe(number)
        summary.observe(number)
        assert text.render(registry.collect()) == by_the_library(registry)
    registry.register(Custom(1.5, '\\"\n', at))
    assert text.render(registry.collect()) == by_the_library(registry)
    if changes:
        gauge.remove(changes[0][0])
        assert text.render(registry.collect()) == by_the_library(registry)


def test_text_of_removed_metrics_is_not_kept() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("level", "how high", ["one"], registry=registry)
    text = Text()

    def come_and_go(count: int) -> int:
        for number in range(count):
            label = f"{number:1000}"
            gauge.labels(label).set(1)
            assert text.render(registry.collect()).endswith(f'level{{one="{label}"}} 1.0\n'.encode())
            gauge.remove(label)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        assert -come_and_go(20) + come_and_go(200) < 100_000
    finally:
        tracemalloc.stop()
