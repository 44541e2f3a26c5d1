"""The metrics of the daemon. docs/metrics.md describes them. Labelled children are bound once, not with each event."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Protocol, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestd import __version__
from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint
from ingestd.api.outcomes import IgnoredTimestamp, Refusal
from ingestd.api.store import Store
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import SinkStatus
from ingestd.observability.loop_monitor import COLLECTOR, CORE
from ingestd.observability.unusable_id_reports import IdField
from ingestd.storage.retentions import Retentions

from .counts import BOUNDS, Counts, RequestCounter
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
        self._requests = RequestCounter()
        self.count = self._requests.count
        self.took = self._requests.took
        self.registry.register(self._requests)
        self.refusals = RefusalCounter()
        """Counts refused events and identify requests by reason."""
        self.registry.register(self.refusals)
        self.waiting = Gauge(
            "ingestd_waiting_events", "Events that wait for their commit at this moment.", registry=self.registry
        )
        self.batches = Gauge(
            "ingestd_waiting_batches",
            "Batches and large events that are in progress at this moment.",
            registry=self.registry,
        )
        batches_refused = Counter(
            "ingestd_batches_refused",
            "Batches and large events refused because too many wait: of their key, their address, or all.",
            ["by"],
            registry=self.registry,
        )
        self._batches_refused = {by: batches_refused.labels(by).inc for by in ("key", "address", "all")}
        self.connections = Gauge("ingestd_http_connections", "Open connections of callers.", registry=self.registry)
        self.buffered = Gauge(
            "ingestd_http_buffered_bytes",
            "Bytes of requests that have begun and have no answer yet.",
            registry=self.registry,
        )
        self._refused = self._count_by(
            "ingestd_http_refused",
            "Connections and requests refused by the HTTP server.",
            "reason",
            Refusal,
        )
        self._ignored_timestamps = self._count_by(
            "ingestd_timestamps_ignored",
            "Ignored timestamps of events and identify requests, for which the time of receipt applies.",
            "reason",
            IgnoredTimestamp,
        )
        self._unusable_ids = self._count_by(
            "ingestd_unusable_ids",
            "Unusable ids of events and identify requests.",
            "field",
            IdField,
        )
        self.texts_as_numbers = Counter(
            "ingestd_texts_as_numbers",
            "Plain decimals that came as text where the schema of their event expects a number.",
            registry=self.registry,
        )
        self.store_up = Gauge(
            "ingestd_store_up",
            "1 while the daemon can store events durably, 0 while it cannot; the part of the partitions that can.",
            registry=self.registry,
        )
        self.loop_delay = Histogram(
            "ingestd_loop_delay_seconds",
            "Delay of the event loop, measured twenty times a second.",
            buckets=BOUNDS,
            registry=self.registry,
        )
        self._loop_held = Counter(
            "ingestd_loop_held_seconds",
            "Seconds for which single calls held the event loop, each for more than a tenth of a second.",
            ["holder"],
            registry=self.registry,
        )
        self._loop_holds = Counter(
            "ingestd_loop_holds",
            "Calls that held the event loop for more than a tenth of a second.",
            ["holder"],
            registry=self.registry,
        )
        for holder in (CORE, COLLECTOR):
            self._loop_holds.labels(holder)
            self._loop_held.labels(holder)
        self.generation = Gauge(
            "ingestd_config_generation",
            "Number of the configuration in force: 1 at the start, one more with each reload.",
            registry=self.registry,
        )
        self.reloaded = Gauge(
            "ingestd_config_last_reload_successful",
            "0 if the last reload was refused, else 1.",
            registry=self.registry,
        )
        self.generation.set(1)
        self.reloaded.set(1)
        self._consumers = _ConsumerCollector()
        self._sinks = _SinkCollector()
        self.registry.register(self._consumers)
        self.registry.register(self._sinks)
        Gauge(
            "ingestd_build_info",
            "Always 1; the labels have the versions.",
            ["version", "python"],
            registry=self.registry,
        ).labels(__version__, platform.python_version()).set(1)

    def _count_by(self, name: str, help: str, label: str, values: type[_Value]) -> dict[_Value, Callable[[], None]]:
        """Make a counter with one label. Returns a function for each value of the label, which counts it."""
        counter = Counter(name, help, [label], registry=self.registry)
        return {value: counter.labels(value.value).inc for value in values}

    def count_refusal(self, endpoint: Endpoint, key: str, refused: Refused, events: int = 1) -> None:
        """Count the reason for refused events, or identify requests, of one key. `key` is as for `count`."""
        self.refusals.count(endpoint, key, refused, events)

    def accepted(self) -> int:
        """The number of events accepted since the start."""
        return self._requests.accepted()

    def session_begun(self) -> None:
        """Count a session begun by an event or identify request."""
        self._requests.sessions += 1

    def refused(self, reason: Refusal) -> None:
        """Count a connection or request refused by the HTTP server."""
        self._refused[reason]()

    def batch_refused(self, by: str) -> None:
        """Count a batch or large event that finds no room. `by` is the bound: `key`, `address` or `all`."""
        self._batches_refused[by]()

    def loop_held(self, holder: str, seconds: float) -> None:
        """Count one call by which a plugin, a sink or a consumer held the event loop."""
        self._loop_holds.labels(holder).inc()
        self._loop_held.labels(holder).inc(seconds)

    def timestamp_ignored(self, reason: IgnoredTimestamp) -> None:
        """Count an ignored `timestamp`."""
        self._ignored_timestamps[reason]()

    def unusable_id(self, field: IdField) -> None:
        """Count an unusable id."""
        self._unusable_ids[field]()

    def counts(self) -> Counts:
        """The counts since the start. Any thread may call it."""
        return self._requests.counts()

    def show_consumers(self, consumers: Iterable[ConsumerTotals]) -> None:
        """Show exactly these consumers, including the consumers of sinks, at every scrape."""
        self._consumers.shown = tuple(consumers)

    def show_journal(self, journal: Retentions) -> None:
        """Show the journal at every scrape."""
        self.registry.register(_JournalCollector(journal))

    def show_state(self, sizes: StateBytes) -> None:
        """Show the sizes of the state at every scrape."""
        self.registry.register(_StateCollector(sizes))

    def show_losses(self, store: Store) -> None:
        """Show losses of data at every scrape."""
        self.registry.register(_LossCollector(store))

    def show_sinks(self, sinks: Iterable[SinkStatus]) -> None:
        """Show exactly these sinks at every scrape."""
        self._sinks.shown = tuple(sinks)


class _ConsumerCollector(Collector):
    def __init__(self) -> None:
        self.shown: tuple[ConsumerTotals, ...] = ()

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily(
            "ingestd_consumer_pending",
            "Records in the journal that the consumer is not done with.",
            labels=["consumer"],
        )
        oldest = GaugeMetricFamily(
            "ingestd_consumer_oldest_pending_seconds",
            "Age of the consumer's oldest pending record, 0 if there is none.",
            labels=["consumer"],
        )
        failures = CounterMetricFamily(
            "ingestd_consumer_failures",
            "Failed attempts to open the consumer or to do a step; the daemon repeats each.",
            labels=["consumer"],
        )
        for consumer in self.shown:
            pending.add_metric([consumer.name], consumer.pending)
            oldest.add_metric([consumer.name], consumer.oldest_pending_seconds)
            failures.add_metric([consumer.name], consumer.failures)
        yield from (pending, oldest, failures)


class _JournalCollector(Collector):
    def __init__(self, journal: Retentions) -> None:
        self._journal = journal

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        journal = self._journal
        yield GaugeMetricFamily("ingestd_journal_records", "Records in the journal.", journal.records)
        yield GaugeMetricFamily(
            "ingestd_journal_bytes",
            "Bytes of the records in the journal, as keep_size and max_size count them.",
            journal.bytes,
        )
        yield GaugeMetricFamily(
            "ingestd_journal_max_bytes", "The journal's max_size in bytes, +Inf without it.", journal.max_bytes
        )
        yield GaugeMetricFamily(
            "ingestd_journal_oldest_seconds",
            "Age of the oldest record in the journal, 0 if there is none.",
            journal.oldest_seconds,
        )
        removed = CounterMetricFamily("ingestd_journal_removed", "Records removed from the journal.", labels=["reason"])
        for reason, count in journal.removed.items():
            removed.add_metric([reason], count)
        lost = CounterMetricFamily(
            "ingestd_journal_lost",
            "Records removed from the journal before the consumer got them.",
            labels=["consumer"],
        )
        for name, count in journal.lost:
            lost.add_metric([name], count)
        yield from (removed, lost)


class _StateCollector(Collector):
    def __init__(self, sizes: StateBytes) -> None:
        self._sizes = sizes

    def collect(self) -> Iterator[Metric]:
        sizes = self._sizes
        yield GaugeMetricFamily(
            "ingestd_state_bytes",
            "What the store uses on its disk or in memory, without the bytes of the journal's records.",
            sizes.state_bytes,
        )
        yield GaugeMetricFamily("ingestd_state_profile_bytes", "What all profiles together use.", sizes.profile_bytes)
        yield GaugeMetricFamily(
            "ingestd_state_max_bytes",
            "The store's max_size in bytes, or its default: three quarters for profiles, a quarter for dead letters.",
            sizes.max_bytes,
        )


class _LossCollector(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "ingestd_store_losses",
            "How often this daemon found that the store had lost data.",
            value=sum(store.losses for store in self._store.parts),
        )
        yield GaugeMetricFamily(
            "ingestd_store_lost",
            "1 while a loss of data is neither repaired nor acknowledged, else 0.",
            value=any(store.loss is not None for store in self._store.parts),
        )


class _SinkCollector(Collector):
    def __init__(self) -> None:
        self.shown: tuple[SinkStatus, ...] = ()

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterator[Metric]:
        families = self._families()
        for sink in self.shown:
            values = (
                sink.delivered, sink.filtered, sink.given_up, sink.retries, sink.pending, sink.oldest_pending_seconds,
                sink.dead_letters, sink.paused, sink.dead_letter_bytes,
            )  # fmt: skip
            for family, value in zip(families, values, strict=True):
                family.add_metric([sink.sink_name], value)
        yield from families

    @staticmethod
    def _families() -> list[CounterMetricFamily | GaugeMetricFamily]:
        return [
            CounterMetricFamily("ingestd_sink_delivered", "Records that the sink has taken.", labels=["sink"]),
            CounterMetricFamily("ingestd_sink_filtered", "Records that the sink's filter left out.", labels=["sink"]),
            CounterMetricFamily("ingestd_sink_given_up", "Records that became dead letters.", labels=["sink"]),
            CounterMetricFamily("ingestd_sink_retries", "Failed writes that were tried again.", labels=["sink"]),
            GaugeMetricFamily(
                "ingestd_sink_pending", "Records in the journal that are not yet in the sink.", labels=["sink"]
            ),
            GaugeMetricFamily(
                "ingestd_sink_oldest_pending_seconds",
                "Age of the sink's oldest pending record, 0 if there is none.",
                labels=["sink"],
            ),
            GaugeMetricFamily("ingestd_sink_dead_letters", "Dead letters of the sink.", labels=["sink"]),
            GaugeMetricFamily("ingestd_sink_paused", "1 while operators have paused the sink.", labels=["sink"]),
            GaugeMetricFamily(
                "ingestd_sink_dead_letter_bytes", "Bytes of the records in the sink's dead letters.", labels=["sink"]
            ),
        ]
