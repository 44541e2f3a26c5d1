"""The history of the last quarter of an hour: differences between samples of the counts, taken every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ingestd.api.outcomes import Outcome
from ingestd.observability.metrics.counts import BOUNDS, Counts
from ingestd.observability.metrics.refusals import RefusalLabels

__all__ = ["GROUPS", "STEP", "History", "Point", "Sample", "quantile"]

STEP = 5.0  # seconds between two samples
_KEPT = 180  # points: a quarter of an hour
_WHOLE = 15  # samples: somewhat more than the minute of the figures by key and outcome

GROUPS: Mapping[Outcome, str] = {
    Outcome.ACCEPTED: "accepted",
    Outcome.DUPLICATE: "skipped",  # answered 200 and not stored
    Outcome.DROPPED: "skipped",
    Outcome.INVALID: "refused",
    Outcome.UNAUTHORIZED: "refused",
    Outcome.FORBIDDEN: "refused",
    Outcome.UNKNOWN_KEY: "refused",
    Outcome.TOO_LARGE: "refused",
    Outcome.LIMITED: "refused",
    Outcome.UNAVAILABLE: "failed",
    Outcome.FAILED: "failed",
}
_GROUP = {outcome.value: group for outcome, group in GROUPS.items()}


class Sample(NamedTuple):
    at: float
    """Seconds since the start of the daemon, by a monotonic clock."""
    time: int
    """The time of day, in milliseconds."""
    counts: Counts
    delivered: Mapping[str, float]
    """The records delivered, by sink."""
    refusals: Mapping[RefusalLabels, int] = {}


class Point(NamedTuple):
    """One point of the charts: the rates since the point before."""

    time: int
    accepted: float
    """Events a second, like the next three."""
    skipped: float
    refused: float
    failed: float
    sessions: float
    """Sessions begun a minute."""
    p50: float | None
    """Seconds, None without requests."""
    p99: float | None


class History:
    """The samples and points. One thread at a time may use them."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_WHOLE)
        self._points: deque[Point] = deque(maxlen=_KEPT)

    @property
    def points(self) -> Sequence[Point]:
        """The points, oldest first."""
        return self._points

    def add(self, sample: Sample) -> None:
        if self._samples:
            self._points.append(point(self._samples[-1], sample))
        self._samples.append(sample)

    def before(self, sample: Sample, seconds: float) -> Sample:
        """The newest sample that is at least `seconds` older, otherwise the oldest sample."""
        older = (each for each in reversed(self._samples) if sample.at - each.at >= seconds)
        return next(older, self._samples[0] if self._samples else sample)


def point(before: Sample, after: Sample) -> Point:
    seconds = max(after.at - before.at, 0.001)
    sums = dict.fromkeys(GROUPS.values(), 0.0)
    for (_, outcome), count in after.counts.events.items():
        sums[_GROUP[outcome]] += count
    for (_, outcome), count in before.counts.events.items():
        sums[_GROUP[outcome]] -= count
    buckets = _all_durations(before.counts, after.counts)
    return Point(
        time=after.time,
        sessions=60 * (after.counts.sessions - before.counts.sessions) / seconds,
        p50=quantile(0.5, buckets),
        p99=quantile(0.99, buckets),
        **{group: count / seconds for group, count in sums.items()},
    )


def _all_durations(before: Counts, after: Counts) -> list[float]:
    operations = [between(before, after, operation) for operation in after.durations]
    return [sum(column) for column in zip(*operations, strict=True)]


def between(before: Counts, after: Counts, operation: str) -> Iterator[float]:
    """The duration buckets of an operation between two samples."""
    values = after.durations[operation]
    for new, old in zip(values, before.durations.get(operation) or [0.0] * len(values), strict=True):
        yield new - old


def quantile(share: float, buckets: Sequence[float]) -> float | None:
    """The quantile in seconds, interpolated in its bucket as Prometheus does it.

    `buckets` are cumulative: one for each of `BOUNDS`, then the number of all requests.
    """
    if not buckets or buckets[-1] <= 0:
        return None
    wanted = share * buckets[-1]
    low, below = 0.0, 0.0
    for high, count in zip(BOUNDS, buckets, strict=False):
        if count >= wanted:
            return low + (high - low) * (wanted - below) / (count - below)
        low, below = high, count
    return BOUNDS[-1]
