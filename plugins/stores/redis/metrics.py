"""Prometheus metrics of the Redis back end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .backend import RedisBackend

__all__ = ["RedisCollector"]


class RedisCollector(Collector):
    """Runs on another thread than the event loop, so it only reads."""

    def __init__(self, backends: Sequence[RedisBackend]) -> None:
        self._backends = backends

    def collect(self) -> Iterable[Metric]:
        backends = self._backends
        yield CounterMetricFamily(
            "ingestd_redis_batches", "Commands sent to Redis, each with operations of one turn of the event loop.",
            value=sum(backend.database.link.batches for backend in backends),
        )  # fmt: skip
        yield CounterMetricFamily(
            "ingestd_redis_operations", "Operations on state and journal in these commands.",
            value=sum(backend.database.link.operations for backend in backends),
        )  # fmt: skip
        yield CounterMetricFamily(
            "ingestd_redis_failovers", "How often another server became the primary that this daemon writes to.",
            value=sum(backend.database.link.failovers for backend in backends),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "ingestd_redis_unreplicated_records",
            "Newest records that sinks and attribution wait to read, because too few replicas have them.",
            value=sum(backend.journal.unreplicated for backend in backends),
        )
        known = all(backend.durability is not None and backend.durability.known for backend in backends)
        yield GaugeMetricFamily(
            "ingestd_redis_durability_known",
            "1 if Redis said at the start whether a restart keeps its data, 0 if the daemon may not ask.",
            value=known,
        )
