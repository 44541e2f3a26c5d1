"""`ingestd sinks status`: the progress of each sink, its failures and its pending records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from ingestd.api import times
from ingestd.api.backend import MissingPartitions
from ingestd.api.check_result import show_age
from ingestd.api.output import columns, write_result
from ingestd.config import Config
from ingestd.delivery.operator_commands import OperatorCommand, Replay
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.terminal import cut, printable, table

from .look import SinkLook, SinkPart, counts_of, kind_of, look_at_sinks
from .partitions import check_known, known_sinks

__all__ = ["status"]

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
        looks = await look_at_sinks(arguments.names or known, config, backends, missing)
    lines = _page(looks) if looks else ["no sinks"]
    write_result(*(look.facts() for look in looks), lines=lines, as_json=arguments.json)
    missing.check("the numbers above lack it")


def _page(looks: Sequence[SinkLook]) -> Iterator[str]:
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


def _commands(name: str, part: SinkPart) -> Iterator[str]:
    for order, reached, count in part.under_way:
        yield f"{name}: command {order.number}, {_told(order)}: {_share(reached, count)}"


def _commands_of_all(look: SinkLook) -> Iterator[str]:
    """A line for each kind of command: the partitions number their commands separately."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for part in look.parts:
        for order, reached, count in part.under_way:
            kinds.setdefault(kind_of(order), []).append((reached, count))
    for kind, shares in kinds.items():
        reached, count = sum(each for each, _ in shares), sum(each for _, each in shares)
        where = f"{len(shares)} of {len(look.parts)} partitions"
        yield f"{look.name}: {kind} in {where}: {_share(reached, count)}"


def _late_parts(look: SinkLook) -> Iterator[str]:
    late = sorted((part for part in look.parts if part.oldest_age > _LATE), key=lambda part: -part.oldest_age)
    for part in late[:_MOST_LATE]:
        yield (
            f"{look.name}: partition {part.partition} is late: {part.pending} pending, the oldest"
            f" {show_age(part.oldest_age)}"
        )
    if late[_MOST_LATE:]:
        yield f"{look.name}: {len(late) - _MOST_LATE} more partitions are late"


def _failure(name: str, part: SinkPart) -> Iterator[str]:
    failure = part.durable.failure
    if failure is not None:
        where = f" in partition {part.partition}" if part.partition else ""
        since, at = times.format_time(failure.since), times.format_time(failure.at)
        yield f"{name}: failed{where} {failure.failures} times in a row, from {since} to {at}:"
        yield f"    {cut(printable(failure.reason), max(_REASON, columns()))}"


def _share(reached: int, count: int) -> str:
    return f"{100 * reached // count} %" if reached else "waits"


def _numbers(look: SinkLook) -> list[str]:
    counts = counts_of(look.parts)
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
    return f"{kind_of(order)} of {count} dead letters"
