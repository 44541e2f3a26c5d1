"""The metrics of the daemon. docs/metrics.md describes them. Labelled children are bound once, not with each event."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestd import __version__
from ingestd.api.outcomes import IgnoredTimestamp, Refusal
from ingestd.api.store import Store
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import SinkStatus
from ingestd.observability.loop_monitor import COLLECTOR, CORE
from ingestd.observability.unusable_id_reports import IdField
from ingestd.storage.retentions import Retentions

from .counts import BOUNDS, RequestCounter
from .refusals import RefusalCounter

__all__ = ["Metrics"]

_Value = TypeVar("_Value", bound=Enum)


class StateBytes(Protocol):
    """The sizes of the state, in bytes."""

    @property
    def state_bytes(self) -> int: ...
    @property
    def profile_bytes(self) -> float: ...
    @property
    def max_bytes(self) -> float: ...


class Metrics:
    """The daemon's metrics, in a separate registry for each daemon of a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        self._requests = RequestCounter()
        self.count, self.took = self._requests.count, self._requests.took
        self.accepted, self.counts = self._requests.accepted, self._requests.counts
        self.registry.register(self._requests)
        self.refusals = RefusalCounter()
        """Counts refused events and identify requests by reason."""
        self.count_refusal = self.refusals.count
        self.registry.register(self.refusals)
        self.waiting = gauge("ingestd_waiting_events", "Events that wait for their commit at this moment.")
        self.batches = gauge("ingestd_waiting_batches", "Batches and large events that are in progress at this moment.")
        batches_refused = counter(
            "ingestd_batches_refused",
            "Batches and large events refused because too many wait: of their key, their address, or all.",
            ["by"],
        )
        self._batches_refused = {by: batches_refused.labels(by).inc for by in ("key", "address", "all")}
        self.connections = gauge("ingestd_http_connections", "Open connections of callers.")
        self.buffered = gauge(
            "ingestd_http_buffered_bytes", "Bytes of requests that have begun and have no answer yet."
        )
        self.refused = self._count_by(
            "ingestd_http_refused", "Connections and requests refused by the HTTP server.", "reason", Refusal
        )
        self.timestamp_ignored = self._count_by(
            "ingestd_timestamps_ignored",
            "Ignored timestamps of events and identify requests, for which the time of receipt applies.",
            "reason",
            IgnoredTimestamp,
        )
        self.unusable_id = self._count_by(
            "ingestd_unusable_ids", "Unusable ids of events and identify requests.", "field", IdField
        )
        self.texts_as_numbers = counter(
            "ingestd_texts_as_numbers",
            "Plain decimals that came as text where the schema of their event expects a number.",
        )
        self.store_up = gauge(
            "ingestd_store_up",
            "1 while the daemon can store events durably, 0 while it cannot; the part of the partitions that can.",
        )
        self.loop_delay = Histogram(
            "ingestd_loop_delay_seconds", "Delay of the event loop, measured twenty times a second.",
            buckets=BOUNDS, registry=self.registry,
        )  # fmt: skip
        self._loop_held = counter(
            "ingestd_loop_held_seconds",
            "Seconds for which single calls held the event loop, each for more than a tenth of a second.",
            ["holder"],
        )
        self._loop_holds = counter(
            "ingestd_loop_holds", "Calls that held the event loop for more than a tenth of a second.", ["holder"]
        )
        for holder in (CORE, COLLECTOR):
            self._loop_holds.labels(holder)
            self._loop_held.labels(holder)
        self.generation = gauge(
            "ingestd_config_generation",
            "Number of the configuration in force: 1 at the start, one more with each reload.",
        )
        self.reloaded = gauge("ingestd_config_last_reload_successful", "0 if the last reload was refused, else 1.")
        self.generation.set(1)
        self.reloaded.set(1)
        self._consumers: Sequence[ConsumerTotals] = ()
        self._sinks: Sequence[SinkStatus] = ()
        for family, name, text in _OF_CONSUMERS:
            self._scrape(family, f"ingestd_consumer_{name}", text, partial(self._of_consumers, name), "consumer")
        for family, name, text in _OF_SINKS:
            self._scrape(family, f"ingestd_sink_{name}", text, partial(self._of_sinks, name), "sink")
        gauge("ingestd_build_info", "Always 1; the labels have the versions.", ["version", "python"]).labels(
            __version__, platform.python_version()
        ).set(1)

    def _count_by(self, name: str, help: str, label: str, values: type[_Value]) -> Callable[[_Value], None]:
        """Make a counter with one label. Returns a function that counts a value of the label."""
        counter = Counter(name, help, [label], registry=self.registry)
        counts = {value: counter.labels(value.value).inc for value in values}
        return lambda value: counts[value]()

    def session_begun(self) -> None:
        """Count a session begun by an event or identify request."""
        self._requests.sessions += 1

    def batch_refused(self, by: str) -> None:
        """Count a batch or large event that finds no room. `by` is the bound: `key`, `address` or `all`."""
        self._batches_refused[by]()

    def loop_held(self, holder: str, seconds: float) -> None:
        """Count one call by which a plugin, a sink or a consumer held the event loop."""
        self._loop_holds.labels(holder).inc()
        self._loop_held.labels(holder).inc(seconds)

    def show_consumers(self, consumers: Iterable[ConsumerTotals]) -> None:
        """Show exactly these consumers, including the consumers of sinks, at every scrape."""
        self._consumers = tuple(consumers)

    def show_sinks(self, sinks: Iterable[SinkStatus]) -> None:
        """Show exactly these sinks at every scrape."""
        self._sinks = tuple(sinks)

    def show_journal(self, journal: Retentions) -> None:
        """Show the journal at every scrape."""
        self.show("ingestd_journal_records", "Records in the journal.", lambda: journal.records)
        self.show(
            "ingestd_journal_bytes",
            "Bytes of the records in the journal, as keep_size and max_size count them.",
            lambda: journal.bytes,
        )
        self.show(
            "ingestd_journal_max_bytes", "The journal's max_size in bytes, +Inf without it.", lambda: journal.max_bytes
        )
        self.show(
            "ingestd_journal_oldest_seconds",
            "Age of the oldest record in the journal, 0 if there is none.",
            lambda: journal.oldest_seconds,
        )
        self._scrape(
            CounterMetricFamily,
            "ingestd_journal_removed",
            "Records removed from the journal.",
            lambda: [*journal.removed.items()],
            "reason",
        )
        self._scrape(
            CounterMetricFamily,
            "ingestd_journal_lost",
            "Records removed from the journal before the consumer got them.",
            lambda: journal.lost,
            "consumer",
        )

    def show_state(self, sizes: StateBytes) -> None:
        """Show the sizes of the state at every scrape."""
        self.show(
            "ingestd_state_bytes",
            "What the store uses on its disk or in memory, without the bytes of the journal's records.",
            lambda: sizes.state_bytes,
        )
        self.show("ingestd_state_profile_bytes", "What all profiles together use.", lambda: sizes.profile_bytes)
        self.show(
            "ingestd_state_max_bytes",
            "The store's max_size in bytes, or its default: three quarters for profiles, a quarter for dead letters.",
            lambda: sizes.max_bytes,
        )

    def show_losses(self, store: Store) -> None:
        """Show losses of data at every scrape."""
        self._scrape(
            CounterMetricFamily,
            "ingestd_store_losses",
            "How often this daemon found that the store had lost data.",
            lambda: [("", sum(each.losses for each in store.parts))],
        )
        self.show(
            "ingestd_store_lost",
            "1 while a loss of data is neither repaired nor acknowledged, else 0.",
            lambda: any(each.loss is not None for each in store.parts),
        )

    def show(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Show a value at every scrape, which runs on another thread than the event loop."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def _scrape(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        help: str,
        values: Callable[[], Iterable[tuple[str, float]]],
        label: str = "",
    ) -> None:
        """Show the values of a label at every scrape. Without a label there is one value, of an empty text."""
        self.registry.register(_Scraped(partial(family, name, help, labels=[label] if label else []), values))

    def _of_consumers(self, name: str) -> Iterable[tuple[str, float]]:
        return [(each.name, getattr(each, name)) for each in self._consumers]

    def _of_sinks(self, name: str) -> Iterable[tuple[str, float]]:
        return [(each.sink_name, getattr(each, name)) for each in self._sinks]


class _Scraped(Collector):
    """A metric whose values are read at every scrape, on another thread than the event loop."""

    def __init__(
        self,
        make: Callable[[], CounterMetricFamily | GaugeMetricFamily],
        values: Callable[[], Iterable[tuple[str, float]]],
    ) -> None:
        self._make = make
        self._values = values

    def describe(self) -> Iterable[Metric]:
        return [self._make()]

    def collect(self) -> Iterator[Metric]:
        family = self._make()
        for text, value in self._values():
            family.add_metric([text] if text else [], value)
        yield family


_OF_CONSUMERS = (
    (GaugeMetricFamily, "pending", "Records in the journal that the consumer is not done with."),
    (GaugeMetricFamily, "oldest_pending_seconds", "Age of the consumer's oldest pending record, 0 if there is none."),
    (CounterMetricFamily, "failures", "Failed attempts to open the consumer or to do a step; the daemon repeats each."),
)
_OF_SINKS = (
    (CounterMetricFamily, "delivered", "Records that the sink has taken."),
    (CounterMetricFamily, "filtered", "Records that the sink's filter left out."),
    (CounterMetricFamily, "given_up", "Records that became dead letters."),
    (CounterMetricFamily, "retries", "Failed writes that were tried again."),
    (GaugeMetricFamily, "pending", "Records in the journal that are not yet in the sink."),
    (GaugeMetricFamily, "oldest_pending_seconds", "Age of the sink's oldest pending record, 0 if there is none."),
    (GaugeMetricFamily, "dead_letters", "Dead letters of the sink."),
    (GaugeMetricFamily, "paused", "1 while operators have paused the sink."),
    (GaugeMetricFamily, "dead_letter_bytes", "Bytes of the records in the sink's dead letters."),
)
"""The metrics of each consumer and each sink by the name of its property."""
