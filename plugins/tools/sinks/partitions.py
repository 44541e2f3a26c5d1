"""The sinks and partitions that a command is about, and the numbers of dead letters in them."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import CommandError
from ingestd.config import Config
from ingestd.support.names import hint

from ..journal_reading import sinks_of

__all__ = [
    "Letters", "check_configured", "check_known", "find_partition", "in_each", "known_sinks", "named", "parse_letter",
    "parse_letters",
]  # fmt: skip

_T = TypeVar("_T")
_AT_ONCE = 32  # partitions


class Letters(NamedTuple):
    """Numbers of dead letters, given by an operator. Each partition counts its letters from 1."""

    partition: str | None
    numbers: range


def parse_letters(text: str) -> Letters:
    """The type of an argument: a number or a range such as `3-7`, and with several partitions `PARTITION:3-7`."""
    match = re.fullmatch(r"(?:([^:]+):)?([1-9][0-9]{0,15})(?:-([1-9][0-9]{0,15}))?", text)
    if match is None or int(match[3] or match[2]) < int(match[2]):
        raise argparse.ArgumentTypeError("expected the number of a dead letter, or a range such as 3-7")
    return Letters(match[1], range(int(match[2]), int(match[3] or match[2]) + 1))


def parse_letter(text: str) -> Letters:
    """The type of an argument: the number of one dead letter."""
    found = parse_letters(text)
    if len(found.numbers) > 1:
        raise argparse.ArgumentTypeError("expected the number of one dead letter")
    return found


def find_partition(name: str | None, partitions: Sequence[Partition], what: str) -> Partition:
    """The partition of a number that an operator has given. Raises `CommandError`. `what` is the kind of number."""
    if name is None:
        if len(partitions) == 1:
            return partitions[0]
        names = [partition.name for partition in partitions]
        raise CommandError(f"every partition counts its {what}: give PARTITION:NUMBER, such as {names[0]}:1")
    for partition in partitions:
        if partition.name == name:
            return partition
    if len(partitions) == 1:
        raise CommandError(f"the store has a single partition: give a number without {name}:")
    known = [partition.name for partition in partitions]
    some = None if len(known) <= 10 else f"known: {known[0]} to {known[-1]}"
    raise CommandError(f"there is no partition {name!r}; {hint(name, known, otherwise=some)}")


def named(partition: str, number: int) -> str:
    """A number of a partition, as commands print and take it."""
    return f"{partition}:{number}" if partition else f"{number}"


async def in_each(
    partitions: Sequence[Partition], missing: MissingPartitions, work: Callable[[Partition], Awaitable[_T]]
) -> list[_T]:
    """Do work in many partitions at once. Return the results of those within reach, in the order of the partitions.

    A partition that cannot store takes seconds to say so. One after the other, they would hold up the work in others.
    """
    results, some = {}, asyncio.Semaphore(_AT_ONCE)

    async def do(partition: Partition) -> None:
        async with some:
            with missing.tolerating(partition):
                results[partition.name] = await work(partition)

    await asyncio.gather(*map(do, partitions))
    return [results[each.name] for each in partitions if each.name in results]


async def known_sinks(config: Config, partitions: Sequence[Partition]) -> list[str]:
    """The sinks of `[sinks.NAME]` in their order, then former sinks with a cursor in a journal within reach."""
    names, missing = dict.fromkeys(config.sink_tables), MissingPartitions(partitions)
    for found in await in_each(partitions, missing, lambda each: sinks_of(each.journal)):
        names |= dict.fromkeys(found)
    return [*names]


def check_known(name: str, known: Iterable[str]) -> None:
    """Raises `CommandError` with the nearest known name."""
    known = [*known]
    if name in known:
        return
    cure = hint(name, known, otherwise=None if known else "none is configured")
    raise CommandError(f"there is no sink {name!r}; {cure}")


async def check_configured(name: str, config: Config, partitions: Sequence[Partition]) -> None:
    """Raises `CommandError` for a sink that is not configured."""
    if name in config.sink_tables:
        return
    check_known(name, await known_sinks(config, partitions))
    raise CommandError(f"the sink {name} is not configured any more: restore [sinks.{name}] first")
