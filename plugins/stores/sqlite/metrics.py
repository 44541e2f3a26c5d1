"""Prometheus metrics of the files. The event loop counts, and each scrape reads the counts on another thread."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .backend import SqliteBackend

__all__ = ["SqliteCollector"]


class SqliteCollector(Collector):
    """All files of this plugin in the daemon: one for both, or the journal's and the state's."""

    def __init__(self, backends: Iterable[SqliteBackend]) -> None:
        self._backends = tuple(backends)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        name, labels = "ingestd_sqlite", ["file"]
        commits = CounterMetricFamily(
            f"{name}_commits", "Commits that were tried, by result.", labels=[*labels, "result"]
        )
        seconds = HistogramMetricFamily(
            f"{name}_commit_duration_seconds", "From handing a commit to the disk to its end.", labels=labels
        )
        units = HistogramMetricFamily(
            f"{name}_commit_units", "Events, steps of consumers and other transactions in one commit.", labels=labels
        )
        hits = CounterMetricFamily(f"{name}_cache_hits", "State entries found in memory.", labels=labels)
        misses = CounterMetricFamily(f"{name}_cache_misses", "State entries read from the file.", labels=labels)
        ruled_out = CounterMetricFamily(
            f"{name}_cache_ruled_out", "State entries found absent without reading the file.",
            labels=labels,
        )  # fmt: skip
        entries = GaugeMetricFamily(f"{name}_cache_entries", "State entries in memory.", labels=labels)
        weight = GaugeMetricFamily(f"{name}_cache_bytes", "Approximate memory of these entries.", labels=labels)
        filters = GaugeMetricFamily(
            f"{name}_filter_bytes", "Memory of the filter for keys that are not in the file, 0 until it is made.",
            labels=labels,
        )  # fmt: skip
        size = GaugeMetricFamily(f"{name}_file_bytes", "Size of the file.", labels=labels)
        log = GaugeMetricFamily(f"{name}_wal_bytes", "Size of the write-ahead log beside it.", labels=labels)
        free = GaugeMetricFamily(f"{name}_disk_free_bytes", "Free space on the disk of the file.", labels=labels)
        for backend in self._backends:
            file = [str(backend.path)]
            database = backend.database
            done, cache = database.statistics, database.entries
            commits.add_metric([*file, "stored"], done.stored)
            commits.add_metric([*file, "failed"], done.failed)
            seconds.add_metric(file, done.seconds.buckets(), done.seconds.sum)
            units.add_metric(file, done.units.buckets(), done.units.sum)
            hits.add_metric(file, cache.hits)
            misses.add_metric(file, cache.misses)
            ruled_out.add_metric(file, cache.ruled_out)
            entries.add_metric(file, cache.count)
            weight.add_metric(file, cache.weight)
            filters.add_metric(file, database.presence.size)
            size.add_metric(file, _size(backend.path))
            log.add_metric(file, _size(backend.path.with_name(f"{backend.path.name}-wal")))
            with suppress(OSError):  # the folder is gone, so the free space is unknown
                free.add_metric(file, shutil.disk_usage(backend.path.parent).free)
        yield from (commits, seconds, units, hits, misses, ruled_out, entries, weight, filters, size, log, free)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # SQLite makes and removes the log at any time
        return 0
