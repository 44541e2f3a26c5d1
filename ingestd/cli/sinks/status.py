"""`ingestd sinks status`: the progress of each sink, its failures and its pending records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingestd.api import times
from ingestd.api.check_result import CheckResult, show_age
from ingestd.api.journal import Journal
from ingestd.api.missing_partitions import MissingPartitions
from ingestd.api.output import columns, write
from ingestd.api.terminal import cut, printable, table
from ingestd.config import Config
from ingestd.delivery.operator_commands import OperatorCommand, Replay
from ingestd.delivery.progress import LastFailure, Progress
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

from .durable import Durable, read_durable
from .moments import Filling, held_behind, look_at_filling
from .names import check_known, known_sinks

__all__ = ["daemon_runs", "status"]

_REASON = 300  # columns of a reason, or the terminal's width if it is larger
_LATE = 60_000  # milliseconds of the oldest pending record after which a partition is listed
_MOST_LATE = 5  # late partitions that are listed
_YEAR = 365 * 86_400


async def status(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async with open_backends(config, plugins) as backends:
        await backends.recover()
        known = await known_sinks(config, backends.partitions)
        for name in arguments.names:
            check_known(name, known)
        missing = MissingPartitions(backends.partitions)
        looks = await _look(arguments.names or known, config, backends, missing)
    if arguments.json:
        write(json.dumps(look.facts()) for look in looks)
    else:
        write(_page(looks) if looks else ["no sinks"])
    missing.check("the numbers above lack it")


def daemon_runs(found: Sequence[CheckResult]) -> bool:
    """Whether the backends' descriptions name a daemon. A daemon on another machine has no `pid` here."""
    return any(each.name == "daemon" and ("pid" in each.facts or "none" not in each.text.split()) for each in found)


@dataclass(frozen=True)
class _Part:
    """The status of a sink in one partition."""

    partition: str
    durable: Durable
    now: int
    pending: int
    oldest_at: int | None
    seconds_left: float | None

    @property
    def under_way(self) -> list[tuple[OperatorCommand, int, int]]:
        """The unfinished commands, each with the number of processed positions or letters, and the number of all."""
        progress = self.durable.progress
        done, at = (0, 0) if progress is None else (progress.command, progress.at)
        found = []
        for order in self.durable.orders.waiting:
            if order.number > done:
                before = order.first - 1 if isinstance(order, Replay) else 0
                reached = max(0, at - before) if order.number == done + 1 else 0
                found.append((order, reached, order.last - before))
        return found

    @property
    def oldest_age(self) -> int:
        return 0 if self.oldest_at is None else max(0, self.now - self.oldest_at)

    def facts(self) -> dict[str, Any]:
        position, progress, orders, trouble = self.durable
        return {
            "partition": self.partition,
            "paused": orders.paused,
            "position": position,
            "began": None if progress is None else progress.began,
            **_counts([self]),
            "orders": [_order_facts(*each) for each in self.under_way],
            "lastError": None if trouble is None else _failure_facts(trouble),
        }


@dataclass(frozen=True)
class _Look:
    """The status of one sink."""

    name: str
    type: str | None
    """None if the sink is not configured any more."""
    parts: Sequence[_Part]
    """A part for each partition within reach."""
    has_daemon: bool

    @property
    def alone(self) -> _Part | None:
        """The only part of a store without partitions."""
        return self.parts[0] if len(self.parts) == 1 and not self.parts[0].partition else None

    @property
    def state(self) -> str:
        if self.type is None:
            return "not configured"
        if not self.parts:
            return "out of reach"
        paused = sum(part.durable.orders.paused for part in self.parts)
        if paused:
            return "paused" if paused == len(self.parts) else "partly paused"
        if not self.has_daemon:
            return "waiting for a daemon"
        return "running" if all(part.durable.trouble is None for part in self.parts) else "failing"

    def facts(self) -> dict[str, Any]:
        head = {"sink": self.name, "type": self.type, "state": self.state}
        if self.alone is not None:
            facts = self.alone.facts()
            return head | {name: value for name, value in facts.items() if name not in {"partition", "paused"}}
        return head | _counts(self.parts) | {"partitions": [part.facts() for part in self.parts]}


def _counts(parts: Sequence[_Part]) -> dict[str, Any]:
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


def _order_facts(order: OperatorCommand, reached: int, count: int) -> dict[str, Any]:
    return {"number": order.number, "order": _kind(order), "done": reached, "of": count}


def _failure_facts(trouble: LastFailure) -> dict[str, Any]:
    return {
        "reason": trouble.reason,
        "since": times.format_time(trouble.since),
        "at": times.format_time(trouble.at),
        "failures": trouble.failures,
    }


async def _look(
    names: Sequence[str], config: Config, backends: Backends, missing: MissingPartitions
) -> Sequence[_Look]:
    now, findings = times.now(), await backends.describe()
    # Of two backends, the last one is the journal's.
    disks = [each.facts["freeBytes"] for each in findings if each.name == "disk" and "freeBytes" in each.facts]
    free = disks[-1] if disks else None
    parts: dict[str, list[_Part]] = {name: [] for name in names}
    for partition in backends.partitions:
        with missing.tolerating(partition):
            extent = await partition.journal.extent()
            filling = await look_at_filling(partition.journal, extent, config.journal, now, free=free)
            for name in names:
                durable = await read_durable(partition.store, partition.journal, name)
                waiting = await _waiting(durable.position, partition.journal, filling)
                parts[name].append(_Part(partition.name, durable, now, **waiting))
    types = {name: table["type"] for name, table in config.sink_tables.items()}
    return [_Look(name, types.get(name), parts[name], daemon_runs(findings)) for name in names]


async def _waiting(position: int | None, journal: Journal, filling: Filling) -> dict[str, Any]:
    """The records that wait for a sink with this cursor, and the time until they fill the journal."""
    if position is None:
        return {"pending": 0, "oldest_at": None, "seconds_left": None}
    extent = await journal.extent()
    oldest = await journal.outlines(position, 1)
    return {
        "pending": max(0, extent.last - max(position, extent.first - 1)),
        "oldest_at": oldest[0].at if oldest else None,
        "seconds_left": filling.seconds_left(await held_behind(journal, extent, position)),
    }


def _kind(order: OperatorCommand) -> str:
    return type(order).__name__.lower()


def _page(looks: Sequence[_Look]) -> Iterator[str]:
    heads = ["SINK", "TYPE", "STATE", "DELIVERED", "FILTERED", "PENDING", "OLDEST", "DEAD", "REPLAYED", "FULL IN"]
    rows = [[look.name, look.type or "-", look.state, *_numbers(look)] for look in looks]
    lost = [sum(part.durable.lost for part in look.parts) for look in looks]
    if any(lost):
        heads.append("LOST")
        for row, count in zip(rows, lost, strict=True):
            row.append(str(count))
    yield from table([heads, *rows], right=range(3, len(heads)))
    for look in looks:
        if look.alone is not None:
            yield from _commands(look.name, look.alone)
        else:
            yield from _commands_of_all(look)
            yield from _late_parts(look)
        for part in look.parts:
            yield from _failure(look.name, part)


def _commands(name: str, part: _Part) -> Iterator[str]:
    for order, reached, count in part.under_way:
        yield f"{name}: command {order.number}, {_told(order)}: {_share(reached, count)}"


def _commands_of_all(look: _Look) -> Iterator[str]:
    """A line for each kind of command: the partitions number their commands separately."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for part in look.parts:
        for order, reached, count in part.under_way:
            kinds.setdefault(_kind(order), []).append((reached, count))
    for kind, shares in kinds.items():
        reached, count = sum(each for each, _ in shares), sum(each for _, each in shares)
        where = f"{len(shares)} of {len(look.parts)} partitions"
        yield f"{look.name}: {kind} in {where}: {_share(reached, count)}"


def _late_parts(look: _Look) -> Iterator[str]:
    late = sorted((part for part in look.parts if part.oldest_age > _LATE), key=lambda part: -part.oldest_age)
    for part in late[:_MOST_LATE]:
        yield (
            f"{look.name}: partition {part.partition} is late: {part.pending} pending, the oldest"
            f" {show_age(part.oldest_age)}"
        )
    if late[_MOST_LATE:]:
        yield f"{look.name}: {len(late) - _MOST_LATE} more partitions are late"


def _failure(name: str, part: _Part) -> Iterator[str]:
    trouble = part.durable.trouble
    if trouble is not None:
        where = f" in partition {part.partition}" if part.partition else ""
        since, at = times.format_time(trouble.since), times.format_time(trouble.at)
        yield f"{name}: failed{where} {trouble.failures} times in a row, from {since} to {at}:"
        yield f"    {cut(printable(trouble.reason), max(_REASON, columns()))}"


def _share(reached: int, count: int) -> str:
    return f"{100 * reached // count} %" if reached else "waits"


def _numbers(look: _Look) -> list[str]:
    counts = _counts(look.parts)
    waits = [part for part in look.parts if part.oldest_at is not None]
    oldest = show_age(max(part.oldest_age for part in waits)) if waits else "-"
    left = [part.seconds_left for part in look.parts if part.seconds_left is not None]
    delivered, filtered, pending, dead, replayed = (
        str(counts[name]) for name in ("delivered", "filtered", "pending", "deadLetters", "replayed")
    )
    return [delivered, filtered, pending, oldest, dead, replayed, _left(min(left)) if left else "-"]


def _left(seconds: float) -> str:
    return "> 1 y" if seconds > _YEAR else show_age(round(seconds * 1000))


def _told(order: OperatorCommand) -> str:
    if isinstance(order, Replay):
        keys = "" if order.keys is None else f" with {', '.join(map(printable, order.keys))}"
        return f"replay of {order.first} to {order.last}{keys}"
    count = "all" if order.letters is None else str(len(order.letters))
    return f"{_kind(order)} of {count} dead letters"
