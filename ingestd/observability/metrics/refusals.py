"""Why events and identify requests were refused, in numbers. Nothing that a caller chose is kept."""

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
"""How many series have a pointer and a reason. With one more for each endpoint and built-in key that is under 1,000."""

OTHER = "other"


class RefusalLabels(NamedTuple):
    """What refused requests are counted by. `pointer` is a place in the schema of `key`, empty for the whole body."""

    endpoint: Endpoint
    key: str
    pointer: str
    reason: str


class RefusalCounter(Collector):
    """The event loop counts; a scrape, or the operators' page, reads on another thread."""

    def __init__(self) -> None:
        self._counts: dict[RefusalLabels, int] = {}
        self._last: dict[RefusalLabels, int] = {}

    def count(self, endpoint: Endpoint, key: str, refused: Refused, events: int) -> None:
        """Count events, or identify requests, of one key that were refused alike."""
        fault = refused.fault
        refusal = RefusalLabels(endpoint, key, *(fault or ("", refused.code)))
        if refusal not in self._counts and len(self._counts) >= MAX_SERIES:
            refusal = RefusalLabels(endpoint, key, OTHER, OTHER)
        self._last[refusal] = times.now()  # first: another thread asks for the time of what is counted
        self._counts[refusal] = self._counts.get(refusal, 0) + events

    def counts(self) -> Mapping[RefusalLabels, int]:
        """How many have been refused since the start; to be called on any thread."""
        return self._counts.copy()

    def last_at(self, refusal: RefusalLabels) -> int:
        """When the last of them came, in milliseconds."""
        return self._last[refusal]

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "ingestd_refusals",
            "Events and identify requests, also in batches, that were not answered 200, by the first fault.",
            labels=["endpoint", "key", "pointer", "reason"],
        )
        for (endpoint, key, pointer, reason), count in self.counts().items():
            family.add_metric([endpoint.value, key, pointer, reason], count)
        yield family
