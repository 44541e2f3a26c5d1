"""Counters of refused events and identify requests, by reason. They hold no value that a caller chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ingestd.api import times
from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint

__all__ = ["MAX_SERIES", "OTHER", "RefusalCounter", "RefusalLabels"]

MAX_SERIES = 900
"""The number of series with a pointer and a reason. One more for each endpoint and built-in key makes under 1,000."""

OTHER = "other"


class RefusalLabels(NamedTuple):
    """The labels of a refusal. `pointer` is a location in the schema of `key`, empty for the whole body."""

    endpoint: str
    key: str
    pointer: str
    reason: str


class RefusalCounter(Collector):
    """The event loop counts. A scrape or the operators' page reads on another thread."""

    def __init__(self) -> None:
        self._counts: dict[RefusalLabels, int] = {}
        self._last: dict[RefusalLabels, int] = {}

    def count(self, endpoint: Endpoint, key: str, refused: Refused, events: int) -> None:
        """Count events or identify requests of one key that were refused for the same reason."""
        fault = refused.fault
        refusal = RefusalLabels(endpoint.value, key, *(fault or ("", refused.code)))
        if refusal not in self._counts and len(self._counts) >= MAX_SERIES:
            refusal = RefusalLabels(endpoint.value, key, OTHER, OTHER)
        self._last[refusal] = times.now()  # before the count: another thread asks for the time of each count
        self._counts[refusal] = self._counts.get(refusal, 0) + events

    def counts(self) -> Mapping[RefusalLabels, int]:
        """The numbers of refusals since the start. Any thread may call it."""
        return self._counts.copy()

    def last_at(self, refusal: RefusalLabels) -> int:
        """The time of the newest such refusal, in milliseconds."""
        return self._last[refusal]

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "ingestd_refusals",
            "Events and identify requests, also in batches, that were not answered 200, by their first fault.",
            labels=["endpoint", "key", "pointer", "reason"],
        )
        for (endpoint, key, pointer, reason), count in self.counts().items():
            family.add_metric([endpoint, key, pointer, reason], count)
        yield family
