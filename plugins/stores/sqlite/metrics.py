"""What Prometheus sees of the files: plain numbers that the event loop keeps, read at each scrape on another thread."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ingestd.distribution import Distribution

if TYPE_CHECKING:
    from .backend import SqliteBackend

__all__ = ["CommitStatistics", "SqliteCollector"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
UNITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class CommitStatistics:
    """Of the transactions that were tried since the file was opened."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0
        self.seconds = Distribution(SECONDS)
        self.units = Distribution(UNITS)

    def add(self, seconds: float, units: int, *, stored: bool) -> None:
        """One more, with so many units of work in it."""
        if stored:
            self.stored += 1
        else:
            self.failed += 1
        self.seconds.add(seconds)
        self.units.add(units)


class SqliteCollector(Collector):
    """All files of the daemon that this plugin keeps: one, or the journal's and the state's."""

    def __init__(self, backends: Iterable[SqliteBackend]) -> None:
        self._backends = tuple(backends)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        name, labels = "ingestd_sqlite", ["file"]
        commits = CounterMetricFamily(
            f"{name}_commits", "Transactions that were tried, by what came of them.", labels=[*labels, "result"]
        )
        seconds = HistogramMetricFamily(
            f"{name}_commit_duration_seconds", "From handing a transaction to the disk to its end.", labels=labels
        )
        units = HistogramMetricFamily(
            f"{name}_commit_units", "Events, steps of consumers and other units of one transaction.", labels=labels
        )
        hits = CounterMetricFamily(f"{name}_cache_hits", "State entries found in memory.", labels=labels)
        misses = CounterMetricFamily(f"{name}_cache_misses", "State entries read from the file.", labels=labels)
        entries = GaugeMetricFamily(f"{name}_cache_entries", "State entries in memory.", labels=labels)
        size = GaugeMetricFamily(f"{name}_file_bytes", "Size of the file.", labels=labels)
        log = GaugeMetricFamily(f"{name}_wal_bytes", "Size of the write-ahead log beside it.", labels=labels)
        free = GaugeMetricFamily(f"{name}_disk_free_bytes", "What is free on the disk of the file.", labels=labels)
        for backend in self._backends:
            file = [str(backend.path)]
            done, cache = backend.statistics, backend.entries
            commits.add_metric([*file, "stored"], done.stored)
            commits.add_metric([*file, "failed"], done.failed)
            seconds.add_metric(file, done.seconds.buckets(), done.seconds.sum)
            units.add_metric(file, done.units.buckets(), done.units.sum)
            hits.add_metric(file, cache.hits)
            misses.add_metric(file, cache.misses)
            entries.add_metric(file, cache.count)
            size.add_metric(file, _size(backend.path))
            log.add_metric(file, _size(backend.path.with_name(f"{backend.path.name}-wal")))
            with suppress(OSError):  # the folder is gone: then nobody knows
                free.add_metric(file, shutil.disk_usage(backend.path.parent).free)
        yield from (commits, seconds, units, hits, misses, entries, size, log, free)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # SQLite makes and removes the log as it likes
        return 0
