"""`ingestd sinks status`: the progress of each sink, its failures and its pending records."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingestd.api import times
from ingestd.api.check_result import CheckResult, show_age
from ingestd.api.journal import Journal
from ingestd.api.output import columns, write
from ingestd.api.terminal import cut, printable, table
from ingestd.config import Config
from ingestd.delivery.operator_commands import OperatorCommand, Replay
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

from .durable import Durable, read_durable
from .moments import Filling, held_behind, look_at_filling
from .names import check_known, known_sinks

__all__ = ["daemon_runs", "status"]

_REASON = 300  # columns of a reason, or the terminal's width if it is larger
_YEAR = 365 * 86_400


async def status(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async with open_backends(config, plugins) as backends:
        await backends.recover()
        known = await known_sinks(config, backends.journal)
        for name in arguments.names:
            check_known(name, known)
        looks = [look async for look in _look(arguments.names or known, config, backends)]
    if arguments.json:
        write(json.dumps(look.facts()) for look in looks)
    else:
        write(_page(looks) if looks else ["no sinks"])


def daemon_runs(found: Sequence[CheckResult]) -> bool:
    """Whether the backends' descriptions name a daemon. A daemon on another machine has no `pid` here."""
    return any(each.name == "daemon" and ("pid" in each.facts or "none" not in each.text.split()) for each in found)


@dataclass(frozen=True)
class _Look:
    """The status of one sink."""

    name: str
    type: str | None
    """None if the sink is not configured any more."""
    durable: Durable
    pending: int
    oldest_at: int | None
    now: int
    has_daemon: bool
    seconds_left: float | None

    @property
    def state(self) -> str:
        if self.type is None:
            return "not configured"
        if self.durable.orders.paused:
            return "paused"
        if not self.has_daemon:
            return "waiting for a daemon"
        return "running" if self.durable.trouble is None else "failing"

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
        position, progress, _, trouble = self.durable
        return {
            "sink": self.name,
            "type": self.type,
            "state": self.state,
            "position": position,
            "began": None if progress is None else progress.began,
            "delivered": 0 if progress is None else progress.delivered,
            "filtered": 0 if progress is None else progress.filtered,
            "pending": self.pending,
            "oldestPendingSeconds": self.oldest_age / 1000,
            "deadLetters": 0 if progress is None else progress.dead,
            "givenUp": 0 if progress is None else progress.given_up,
            "replayed": 0 if progress is None else progress.replayed,
            "retried": 0 if progress is None else progress.retried,
            "discarded": 0 if progress is None else progress.discarded,
            "lost": self.durable.lost,
            "fullInSeconds": None if self.seconds_left is None else round(self.seconds_left),
            "orders": [
                {"number": order.number, "order": _kind(order), "done": reached, "of": count}
                for order, reached, count in self.under_way
            ],
            "lastError": None if trouble is None else {
                "reason": trouble.reason,
                "since": times.format_time(trouble.since),
                "at": times.format_time(trouble.at),
                "failures": trouble.failures,
            },
        }  # fmt: skip


async def _look(names: Sequence[str], config: Config, backends: Backends) -> AsyncIterator[_Look]:
    journal, now = backends.journal, times.now()
    findings = await backends.describe()
    # Of two backends, the last one is the journal's.
    disks = [each.facts["freeBytes"] for each in findings if each.name == "disk" and "freeBytes" in each.facts]
    free = disks[-1] if disks else None
    filling = await look_at_filling(journal, await journal.extent(), config.journal, now, free=free)
    for name in names:
        durable = await read_durable(backends.store, journal, name)
        table = config.sink_tables.get(name)
        yield _Look(
            name=name,
            type=None if table is None else table["type"],
            durable=durable,
            now=now,
            has_daemon=daemon_runs(findings),
            **await _waiting(durable.position, journal, filling),
        )


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
    if any(look.durable.lost for look in looks):
        heads.append("LOST")
        for row, look in zip(rows, looks, strict=True):
            row.append(str(look.durable.lost))
    yield from table([heads, *rows], right=range(3, len(heads)))
    for look in looks:
        for order, reached, count in look.under_way:
            share = f"{100 * reached // count} %" if reached else "waits"
            yield f"{look.name}: command {order.number}, {_told(order)}: {share}"
        trouble = look.durable.trouble
        if trouble is not None:
            since, at = times.format_time(trouble.since), times.format_time(trouble.at)
            yield f"{look.name}: failed {trouble.failures} times in a row, from {since} to {at}:"
            yield f"    {cut(printable(trouble.reason), max(_REASON, columns()))}"


def _numbers(look: _Look) -> list[str]:
    progress = look.durable.progress
    counts = (0, 0, 0, 0) if progress is None else (
        progress.delivered, progress.filtered, progress.dead, progress.replayed,
    )  # fmt: skip
    delivered, filtered, dead, replayed = map(str, counts)
    oldest = show_age(look.oldest_age) if look.oldest_at is not None else "-"
    left = "-" if look.seconds_left is None else _left(look.seconds_left)
    return [delivered, filtered, str(look.pending), oldest, dead, replayed, left]


def _left(seconds: float) -> str:
    return "> 1 y" if seconds > _YEAR else show_age(round(seconds * 1000))


def _told(order: OperatorCommand) -> str:
    if isinstance(order, Replay):
        keys = "" if order.keys is None else f" with {', '.join(map(printable, order.keys))}"
        return f"replay of {order.first} to {order.last}{keys}"
    count = "all" if order.letters is None else str(len(order.letters))
    return f"{_kind(order)} of {count} dead letters"
