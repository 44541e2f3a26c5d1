"""The members of the JSON of the operators' page, described in docs/operators-page.md."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ingestd import __version__
from ingestd.api import times
from ingestd.api.panels import Panel
from ingestd.api.store import Store
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import SinkStatus
from ingestd.hooks.caller import HookFailure, Hooks
from ingestd.http.operators import Shown
from ingestd.observability.metrics import Metrics
from ingestd.observability.metrics.counts import Counts
from ingestd.observability.metrics.refusals import RefusalCounter
from ingestd.storage.retentions import Retentions

from ..dead_letters import sinks_command
from ..recent_lines import RecentLines, presentable
from .history import STEP, History, Point, Sample, between, point, quantile

__all__ = ["Panels", "Sources", "body_of"]

_NOW = 10.0  # seconds over which the present rates are measured
_MINUTE = 60.0
_MAX_REFUSALS = 20  # rows


class Sources(NamedTuple):
    """The sources of the other members, the same for the daemon's life."""

    metrics: Metrics
    problem: Callable[[], str | None]
    """The reason if the daemon is not ready, None if it is ready."""
    journal: Retentions
    lines: RecentLines
    config_path: str
    """The path of the configuration, for the commands that the page shows."""
    remark: Callable[[], str | None] = lambda: None
    """What is wrong although the daemon is ready, or None."""


def body_of(
    sources: Sources, shown: Shown, history: History, sample: Sample, panels: Sequence[Panel]
) -> dict[str, Any]:
    lately, minute = history.before(sample, _NOW), history.before(sample, _MINUTE)
    problem = sources.problem()
    return {
        "version": __version__,
        "time": times.format_time(sample.time),
        "uptimeSeconds": round(sample.at, 1),
        "ready": problem is None,
        "problem": sources.remark() if problem is None else problem,
        "now": _rates(point(lately, sample)),
        "events": _events(minute.counts, sample.counts),
        "identifies": _outcomes(minute.counts.identifies, sample.counts.identifies),
        "refusals": _refusals(sources.metrics.refusals, minute, sample),
        "sessions": _count(minute.counts.sessions, sample.counts.sessions),
        "latency": _latency(minute.counts, sample.counts),
        "sinks": [_sink(each, shown.types, minute, sample, sources.config_path) for each in shown.sinks],
        "consumers": [_consumer(each) for each in shown.consumers],
        "journal": {
            "records": sources.journal.records,
            "bytes": sources.journal.bytes,
            "oldestSeconds": sources.journal.oldest_seconds,
        },
        "panels": panels,
        "errors": sources.lines.newest_first(),
        "history": {"stepSeconds": STEP, **_columns(history.points)},
    }


def _rates(now: Point) -> dict[str, float]:
    return {
        "acceptedPerSecond": round(now.accepted, 2),
        "skippedPerSecond": round(now.skipped, 2),
        "refusedPerSecond": round(now.refused, 2),
        "failedPerSecond": round(now.failed, 2),
        "sessionsPerMinute": round(now.sessions, 2),
    }


def _count(before: float, after: float) -> dict[str, int]:
    return {"lastMinute": round(after - before), "total": round(after)}


def _outcomes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, dict[str, int]]:
    return {outcome: _count(before.get(outcome, 0), count) for outcome, count in after.items() if count}


def _events(before: Counts, after: Counts) -> dict[str, Any]:
    keys: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    whole: tuple[dict[str, float], dict[str, float]] = {}, {}
    for index, counts in enumerate((before, after)):
        for (key, outcome), count in counts.events.items():
            for sums in (keys.setdefault(key, ({}, {}))[index], whole[index]):
                sums[outcome] = sums.get(outcome, 0) + count
    return {
        **_count(sum(whole[0].values()), sum(whole[1].values())),
        "byOutcome": _outcomes(*whole),
        "byKey": [
            {"key": key, **_count(sum(old.values()), sum(new.values())), "byOutcome": _outcomes(old, new)}
            for key, (old, new) in sorted(keys.items(), key=lambda each: (-sum(each[1][1].values()), each[0]))
        ],
    }


def _refusals(refusals: RefusalCounter, minute: Sample, sample: Sample) -> list[dict[str, Any]]:
    """The most frequent reasons: first by the number in the last minute, then by the total."""
    rows: list[dict[str, Any]] = [
        {
            "endpoint": each.endpoint,
            "key": each.key,
            "pointer": each.pointer,
            "reason": each.reason,
            **_count(minute.refusals.get(each, 0), total),
            "lastAt": times.format_time(refusals.last_at(each)),
        }
        for each, total in sample.refusals.items()
    ]
    return sorted(rows, key=lambda row: (-row["lastMinute"], -row["total"]))[:_MAX_REFUSALS]


def _latency(before: Counts, after: Counts) -> list[dict[str, Any]]:
    found = []
    for operation in after.durations:
        buckets = list(between(before, after, operation))
        if after.durations[operation][-1]:
            found.append({
                "operation": operation,
                "lastMinute": round(buckets[-1]),
                "total": round(after.durations[operation][-1]),
                "p50Seconds": quantile(0.5, buckets),
                "p99Seconds": quantile(0.99, buckets),
            })  # fmt: skip
    return found


def _presentable(reason: str | None) -> str | None:
    return None if reason is None else presentable(reason)


def _sink(
    sink: SinkStatus, types: Mapping[str, str], minute: Sample, sample: Sample, config_path: str
) -> dict[str, Any]:
    name = sink.sink_name
    return {
        "sink": name,
        "type": types.get(name),
        "state": sink.state,
        "delivered": _count(minute.delivered.get(name, 0), sample.delivered.get(name, 0)),
        "filtered": sink.filtered,
        "retries": sink.retries,
        "pending": sink.pending,
        "oldestPendingSeconds": sink.oldest_pending_seconds,
        "deadLetters": sink.dead_letters,
        "deadLettersCommand": sinks_command(config_path, "dead-letters", "list", name),
        "lastDeadLetterReason": _presentable(sink.last_dead_letter_reason),
        "lastError": _presentable(sink.last_error),
    }


def _consumer(consumer: ConsumerTotals) -> dict[str, Any]:
    return {
        "consumer": consumer.name,
        "state": consumer.state,
        "pending": consumer.pending,
        "oldestPendingSeconds": consumer.oldest_pending_seconds,
        "failures": consumer.failures,
        "lastError": _presentable(consumer.last_error),
    }


def _columns(points: Sequence[Point]) -> dict[str, list[float | None]]:
    """The points as charts need them: one list for each member."""
    return {
        "time": [each.time / 1000 for each in points],
        "accepted": [round(each.accepted, 2) for each in points],
        "skipped": [round(each.skipped, 2) for each in points],
        "refused": [round(each.refused, 2) for each in points],
        "failed": [round(each.failed, 2) for each in points],
        "sessions": [round(each.sessions, 2) for each in points],
        "p50": [None if each.p50 is None else round(each.p50, 6) for each in points],
        "p99": [None if each.p99 is None else round(each.p99, 6) for each in points],
    }


log = logging.getLogger("ingestd.overview")


class Panels:
    """`hooks` returns the hooks of the present generation."""

    def __init__(self, hooks: Callable[[], Hooks], store: Store) -> None:
        self._hooks = hooks
        self._store = store
        self._failing: set[str] = set()

    async def ask(self, selection: Mapping[str, str]) -> Sequence[Panel]:
        """The panels of all plugins, in the order of the plugins. Never raises."""
        shown = []
        for plugin, answer in await self._hooks().show_panel(self._store, selection):
            if isinstance(answer, HookFailure):
                if plugin not in self._failing:
                    log.warning("%s: %r", answer, answer.__cause__)
                self._failing.add(plugin)
                shown.append(Panel(plugin, [], note="This panel has failed. The log has the reason."))
            else:
                self._failing.discard(plugin)
                shown.append(answer)
        return shown
