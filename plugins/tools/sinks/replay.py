"""`ingestd sinks replay`: writes records to a sink again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import CommandError
from ingestd.api.journal import Journal, JournalStats
from ingestd.api.output import write, write_result
from ingestd.config import Config
from ingestd.delivery.operator_commands import Replay, give_command
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.terminal import printable

from .durable import Durable, read_durable
from .given import Given, Outcome
from .moments import Point, first_since
from .partitions import check_configured, find_partition, in_each
from .progress_bar import ProgressBar
from .running import Run, check_ready, conclude, make_feeder, waiting

__all__ = ["replay"]


async def replay(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        await backends.recover()
        await check_configured(name, config, backends.partitions)
        feeder = make_feeder(name, config, plugins)
        plans = await _make_plans(arguments, backends.partitions, missing)
        planned = {plan.partition.name: plan for plan in plans}
        given = await in_each([plan.partition for plan in plans], missing, lambda each: planned[each.name].give(name))
        plans = [plan for plan in plans if plan.partition.name not in missing.reasons]
        if not plans:
            missing.check("nothing is replayed")
    if not arguments.json:
        write(_told(name, plans))
    if not arguments.wait:
        write_result(_facts(name, plans, given, None), lines=[waiting(name, given)], as_json=arguments.json)
    else:
        count = sum(each.count for each in given)
        bar = ProgressBar(count, "records processed", quiet=arguments.json)
        outcome = await Run(feeder, given, bar.show, bar.say).until_done(config, plugins)
        if outcome.interrupted is None:
            bar.show(count)
        bar.close()
        facts = _facts(name, plans, given, outcome)
        conclude(name, outcome, facts, _result(name, outcome), as_json=arguments.json)
    missing.check("its records are not replayed")


async def _make_plans(
    arguments: argparse.Namespace, partitions: Sequence[Partition], missing: MissingPartitions
) -> list[_Plan]:
    """The records of each partition. Raises `CommandError` if there are none, or if waiting would never end."""
    places = [each for each in (arguments.begin, arguments.end) if each is not None]
    # A position chooses its partition. Otherwise there are times only.
    positions = [each for each in places if each.partition is not None or each.point.position is not None]
    if positions:
        chosen = {find_partition(each.partition, partitions, "records").name for each in positions}
        if len(chosen) > 1:
            raise CommandError("--from and --to are positions in different partitions")
        partitions = [partition for partition in partitions if partition.name in chosen]
    plans: list[_Plan] = []
    refusals: list[CommandError] = []
    for partition in partitions:
        with missing.tolerating(partition):
            durable = await read_durable(partition.store, partition.journal, arguments.name)
            check_ready(arguments.name, durable, wait=arguments.wait)
            try:
                plans.append(await _Plan.make(arguments, durable, partition))
            except CommandError as refusal:  # the other partitions may have records
                refusals.append(refusal)
    if not plans:
        missing.check("nothing is replayed")
        raise refusals[0]
    return plans


@dataclass(frozen=True)
class _Plan:
    """The records of a replay: a range of the records that the sink has received and the journal still has."""

    order: Replay
    partition: Partition
    durable: Durable
    extent: JournalStats
    is_trimmed: bool
    """Whether the journal has removed some of the wanted records."""

    @property
    def count(self) -> int:
        """The number of records."""
        return self.order.last - self.order.first + 1

    @property
    def there(self) -> int:
        """The number of records in the journal that the sink has received."""
        return (self.durable.position or 0) - self.extent.first + 1

    @classmethod
    async def make(cls, arguments: argparse.Namespace, durable: Durable, partition: Partition) -> _Plan:
        """Raises `CommandError` if there are no records to write again."""
        journal = partition.journal
        extent = await journal.extent()
        position = durable.position or 0
        begin = arguments.begin.point
        wanted = begin.position if begin.position is not None else await first_since(journal, extent, begin.at)
        first = max(wanted, extent.first)
        last = position if arguments.end is None else min(position, await _last(arguments.end.point, extent, journal))
        name = arguments.name
        if position < extent.first:
            raise CommandError(f"the sink {name} has received none of the records in the journal: nothing is replayed")
        if wanted > position:
            raise CommandError(f"the sink {name} has only received the records up to {position}: nothing is replayed")
        if first > last:
            raise CommandError(f"there are no records from {first} to {last} in the journal: nothing is replayed")
        keys = tuple(dict.fromkeys(arguments.keys)) if arguments.keys else None
        is_trimmed = wanted < extent.first or _reaches_back(begin, extent)
        return cls(Replay(first=first, last=last, keys=keys), partition, durable, extent, is_trimmed)

    async def give(self, name: str) -> Given:
        """Give the command. Raises `CommandError`, `Unavailable`."""
        number, first = await give_command(self.partition.store, name, self.order), self.order.first
        given = Given(self.partition, number, self.count, lambda progress: progress.at - first + 1)
        given.see(self.durable.progress)
        return given

    def told(self, name: str) -> Iterator[str]:
        first, last = self.order.first, self.order.last
        if self.is_trimmed:
            since = "" if self.extent.oldest_at is None else f", received {times.format_time(self.extent.oldest_at)}"
            yield f"older records have been removed from the journal: it begins with {self.extent.first}{since}"
        which = _which(self.order.keys)
        yield f"{name} gets the records {first} to {last} again: {self.count} of {self.there} in the journal{which}"
        progress = self.durable.progress
        began = self.durable.position or 0 if progress is None else progress.began
        if first <= began:
            yield f"(it began after record {began}: it gets the records up to there for the first time)"

    def facts(self) -> dict[str, Any]:
        return {
            "from": self.order.first,
            "to": self.order.last,
            "keys": None if self.order.keys is None else list(self.order.keys),
            "records": self.count,
            "of": self.there,
            "trimmed": self.is_trimmed,
        }


async def _last(end: Point, extent: JournalStats, journal: Journal) -> int:
    return end.position if end.position is not None else await first_since(journal, extent, end.at + 1) - 1


def _reaches_back(begin: Point, extent: JournalStats) -> bool:
    """Whether a time is before the oldest record of a journal that has removed records."""
    return begin.position is None and extent.first > 1 and extent.oldest_at is not None and begin.at < extent.oldest_at


def _which(keys: Sequence[str] | None) -> str:
    return "" if keys is None else f", only the keys {', '.join(map(printable, keys))}"


def _told(name: str, plans: Sequence[_Plan]) -> Iterator[str]:
    if len(plans) == 1 and not plans[0].partition.name:
        yield from plans[0].told(name)
        return
    trimmed = [plan.partition.name for plan in plans if plan.is_trimmed]
    if trimmed:
        yield f"older records have been removed from the journals of the partitions {', '.join(trimmed)}"
    count, there = sum(plan.count for plan in plans), sum(plan.there for plan in plans)
    which = _which(plans[0].order.keys)
    yield f"{name} gets {count} records of {len(plans)} partitions again, of {there} in the journals{which}"


def _facts(name: str, plans: Sequence[_Plan], given: Sequence[Given], outcome: Outcome | None) -> dict[str, Any]:
    replayed, given_up = (0, 0) if outcome is None else _counts(outcome)
    ended = {
        "done": outcome is not None and outcome.interrupted is None,
        "replayed": replayed,
        "deadLetters": given_up,
    }
    facts = [{"order": each.number, **plan.facts()} for plan, each in zip(plans, given, strict=True)]
    if len(plans) == 1 and not plans[0].partition.name:
        return {"sink": name, **facts[0], **ended}
    return {
        "sink": name,
        "keys": facts[0]["keys"],
        "records": sum(plan.count for plan in plans),
        "of": sum(plan.there for plan in plans),
        "trimmed": any(plan.is_trimmed for plan in plans),
        **ended,
        "partitions": [{"partition": plan.partition.name, **each} for plan, each in zip(plans, facts, strict=True)],
    }


def _counts(outcome: Outcome) -> tuple[int | None, int | None]:
    """The numbers of records written again and of new dead letters, None if they include other commands."""
    return outcome.added(lambda progress: progress.replayed), outcome.added(lambda progress: progress.given_up_again)


def _result(name: str, outcome: Outcome) -> Iterator[str]:
    replayed, given_up = _counts(outcome)
    yield f"done: {name} has the records again" if replayed is None else f"{replayed} records written to {name} again"
    if given_up:
        yield f"{given_up} became dead letters: ingestd sinks dead-letters list {name}"
