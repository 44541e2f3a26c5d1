"""What /metrics answers: the registry in Prometheus' text format, made beside the event loop.

The format is the client library's, and so is every word of it but the values: what stands before a value
is made by the library once, and kept. Making it again each time would be most of what a scrape costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

__all__ = ["CONTENT_TYPE", "Exposition", "Text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Those of which each sample is a line of its own, with no line about it but the family's.
_PLAIN = {"counter", "gauge", "histogram", "summary"}
_TIMED = {"counter", "histogram", "summary"}

_number: Callable[[float], str] = floatToGoString


class Exposition:
    """Renders a registry on a thread of its own, one at a time.

    Who asks while one is being made gets the next, together with all others who ask by then: so nobody
    gets numbers from before the question, and a crowd costs no more than two.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._text = Text()
        # Not the loop's own threads: all of those may be waiting for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._current: asyncio.Future[bytes] | None = None
        self._next: asyncio.Future[bytes] | None = None

    async def render(self) -> bytes:
        """The present values. Raises what a collector raises."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._current))
        return await asyncio.shield(self._next)  # others may be waiting for it when one of them goes

    async def _after(self, current: asyncio.Future[bytes] | None) -> bytes:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._text.render(self._registry.collect())
        )


class Text:
    """The text of metrics, without the library's `_created` samples: they would be half of it, and say little."""

    def __init__(self) -> None:
        self._heads: dict[object, str] = {}
        """Of the last rendering: what stands before each value, and before each family's samples."""

    def render(self, metrics: Iterable[Metric]) -> bytes:
        """The families as they come, in UTF-8."""
        known = self._heads
        heads: dict[object, str] = {}
        parts: list[str] = []
        for metric in metrics:
            if metric.type not in _PLAIN:
                parts.append(_by_the_library(metric))
                continue
            family = (metric.name, metric.type, metric.documentation)
            heads[family] = known.get(family) or _by_the_library(_like(metric))
            parts.append(heads[family])
            created = f"{metric.name}_created" if metric.type in _TIMED else None
            for sample in metric.samples:
                if sample.name == created:
                    continue
                key = (sample.name, *sample.labels.items())
                head = heads[key] = known.get(key) or _head(metric, sample)
                when = "" if sample.timestamp is None else f" {int(float(sample.timestamp) * 1000)}"
                parts.append(f"{head} {_number(sample.value)}{when}\n")
        self._heads = heads
        return "".join(parts).encode()


def _head(metric: Metric, sample: Sample) -> str:
    """Name and labels of a sample."""
    line = _by_the_library(_like(metric, Sample(sample.name, sample.labels, 0.0))).split("\n")[-2]
    return line.rpartition(" ")[0]


def _like(metric: Metric, *samples: Sample) -> Metric:
    like = Metric(metric.name, metric.documentation, metric.type)
    like.samples = [*samples]
    return like


class _Only(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _by_the_library(metric: Metric) -> str:
    return generate_latest(_Only(metric)).decode()
