"""The state of sinks over the partitions of the store, as the store and the journal have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.check_result import CheckResult
from ingestd.config import Config
from ingestd.delivery.operator_commands import OperatorCommand, Replay
from ingestd.delivery.progress import LastFailure, Progress
from ingestd.storage.backends import Backends

from .durable import Durable, read_durable
from .moments import Filling, held_behind, look_at_filling

__all__ = ["SinkLook", "SinkPart", "counts_of", "daemon_runs", "kind_of", "look_at_sinks"]


def daemon_runs(found: Sequence[CheckResult]) -> bool:
    """Whether the backends' descriptions name a daemon. A daemon on another machine has no `pid` here."""
    return any(each.name == "daemon" and ("pid" in each.facts or "none" not in each.text.split()) for each in found)


@dataclass(frozen=True)
class SinkPart:
    """The status of a sink in one partition."""

    partition: str
    durable: Durable
    now: int
    pending: int
    """The number of records that wait."""
    oldest_at: int | None
    seconds_left: float | None
    """The time until the waiting records fill the journal."""

    @property
    def under_way(self) -> list[tuple[OperatorCommand, int, int]]:
        """The unfinished commands, each with the number of processed positions or letters, and the number of all."""
        progress = self.durable.progress
        done, at = (0, 0) if progress is None else (progress.command, progress.at)
        found = []
        for command in self.durable.commands.waiting:
            if command.number > done:
                before = command.first - 1 if isinstance(command, Replay) else 0
                reached = max(0, at - before) if command.number == done + 1 else 0
                found.append((command, reached, command.last - before))
        return found

    @property
    def oldest_age(self) -> int:
        return 0 if self.oldest_at is None else max(0, self.now - self.oldest_at)

    def facts(self) -> dict[str, Any]:
        position, progress, commands, failure = self.durable
        return {
            "partition": self.partition,
            "paused": commands.paused,
            "position": position,
            "began": None if progress is None else progress.began,
            **counts_of([self]),
            "orders": [
                {"number": command.number, "order": kind_of(command), "done": reached, "of": count}
                for command, reached, count in self.under_way
            ],
            "lastError": None if failure is None else _failure_facts(failure),
        }


@dataclass(frozen=True)
class SinkLook:
    """The status of one sink."""

    name: str
    type: str | None
    """None if the sink is not configured any more."""
    parts: Sequence[SinkPart]
    """A part for each partition within reach."""
    has_daemon: bool

    @property
    def alone(self) -> SinkPart | None:
        """The only part of a store without partitions."""
        return self.parts[0] if len(self.parts) == 1 and not self.parts[0].partition else None

    @property
    def state(self) -> str:
        if self.type is None:
            return "not configured"
        if not self.parts:
            return "out of reach"
        paused = sum(part.durable.commands.paused for part in self.parts)
        if paused:
            return "paused" if paused == len(self.parts) else "partly paused"
        if not self.has_daemon:
            return "waiting for a daemon"
        return "running" if all(part.durable.failure is None for part in self.parts) else "failing"

    def facts(self) -> dict[str, Any]:
        head = {"sink": self.name, "type": self.type, "state": self.state}
        if self.alone is not None:
            facts = self.alone.facts()
            return head | {name: value for name, value in facts.items() if name not in {"partition", "paused"}}
        return head | counts_of(self.parts) | {"partitions": [part.facts() for part in self.parts]}


def counts_of(parts: Sequence[SinkPart]) -> dict[str, Any]:
    """The sums of the counts, and the longest and shortest times."""

    def sum_of(count: Callable[[Progress], int]) -> int:
        return sum(count(part.durable.progress) for part in parts if part.durable.progress is not None)

    left = [part.seconds_left for part in parts if part.seconds_left is not None]
    return {
        "delivered": sum_of(lambda progress: progress.delivered),
        "filtered": sum_of(lambda progress: progress.filtered),
        "pending": sum(part.pending for part in parts),
        "oldestPendingSeconds": max((part.oldest_age for part in parts), default=0) / 1000,
        "deadLetters": sum_of(lambda progress: progress.dead),
        "givenUp": sum_of(lambda progress: progress.given_up),
        "replayed": sum_of(lambda progress: progress.replayed),
        "retried": sum_of(lambda progress: progress.retried),
        "discarded": sum_of(lambda progress: progress.discarded),
        "lost": sum(part.durable.lost for part in parts),
        "fullInSeconds": round(min(left)) if left else None,
    }


def _failure_facts(failure: LastFailure) -> dict[str, Any]:
    return {
        "reason": failure.reason,
        "since": times.format_time(failure.since),
        "at": times.format_time(failure.at),
        "failures": failure.failures,
    }


async def look_at_sinks(
    names: Sequence[str], config: Config, backends: Backends, missing: MissingPartitions
) -> Sequence[SinkLook]:
    now, findings = times.now(), await backends.describe()
    # Of two backends, the last one is the journal's.
    disks = [each.facts["freeBytes"] for each in findings if each.name == "disk" and "freeBytes" in each.facts]
    free = disks[-1] if disks else None
    parts: dict[str, list[SinkPart]] = {name: [] for name in names}
    for partition in backends.partitions:
        with missing.tolerating(partition):
            extent = await partition.journal.extent()
            filling = await look_at_filling(partition.journal, extent, config.journal, now, free=free)
            for name in names:
                parts[name].append(await _look_at_part(name, partition, filling, now))
    types = {name: table["type"] for name, table in config.sink_tables.items()}
    return [SinkLook(name, types.get(name), parts[name], daemon_runs(findings)) for name in names]


async def _look_at_part(name: str, partition: Partition, filling: Filling, now: int) -> SinkPart:
    journal = partition.journal
    durable = await read_durable(partition.store, journal, name)
    position = durable.position
    if position is None:
        return SinkPart(partition.name, durable, now, 0, None, None)
    extent = await journal.extent()
    oldest = await journal.outlines(position, 1)
    pending = max(0, extent.last - max(position, extent.first - 1))
    seconds_left = filling.seconds_left(await held_behind(journal, extent, position))
    return SinkPart(partition.name, durable, now, pending, oldest[0].at if oldest else None, seconds_left)


def kind_of(order: OperatorCommand) -> str:
    return type(order).__name__.lower()
