"""`ingestd sinks replay`: writes records to a sink again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.journal import Journal, JournalStats
from ingestd.api.output import write
from ingestd.api.terminal import printable
from ingestd.config import Config
from ingestd.delivery.operator_commands import Replay, give_command
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends

from .durable import Durable, read_durable
from .moments import Point, first_since
from .names import check_configured
from .progress_bar import ProgressBar
from .running import Outcome, Run, check_ready, leave, make_feeder, waiting

__all__ = ["replay"]


async def replay(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        await backends.recover()
        await check_configured(name, config, backends.journal)
        feeder = make_feeder(name, config, plugins)
        durable = await read_durable(backends.store, backends.journal, name)
        check_ready(name, durable, wait=arguments.wait)
        plan = await _Plan.make(arguments, durable, backends.journal)
        number = await give_command(backends.store, name, plan.order)
    if not arguments.json:
        write(plan.told(name))
    if not arguments.wait:
        write([json.dumps(plan.facts(name, number, None))] if arguments.json else [waiting(name, number)])
        return
    first, count = plan.order.first, plan.order.last - plan.order.first + 1
    bar = ProgressBar(count, "records processed", quiet=arguments.json)
    run = Run(feeder, number, durable, lambda progress: bar.show(progress.at - first + 1), bar.say)
    outcome = await run.until_done(config, plugins)
    if outcome.interrupted is None:
        bar.show(count)
    bar.close()
    if arguments.json:
        write([json.dumps(plan.facts(name, number, outcome))])
    elif outcome.interrupted is None:
        write(_result(name, outcome))
    leave(name, outcome, quiet=arguments.json)


class _Plan:
    """The records of a replay: a range of the records that the sink has received and the journal still has."""

    def __init__(self, order: Replay, position: int, extent: JournalStats, *, is_trimmed: bool, began: int) -> None:
        self.order = order
        self._position = position
        self._extent = extent
        self._is_trimmed = is_trimmed
        self._began = began

    @classmethod
    async def make(cls, arguments: argparse.Namespace, durable: Durable, journal: Journal) -> _Plan:
        """Raises `CommandError` if there are no records to write again."""
        extent = await journal.extent()
        position = durable.position or 0
        wanted = await _first(arguments.begin, extent, journal)
        first = max(wanted, extent.first)
        last = position if arguments.end is None else min(position, await _last(arguments.end, extent, journal))
        name = arguments.name
        if position < extent.first:
            raise CommandError(f"the sink {name} has received none of the records in the journal: nothing is replayed")
        if wanted > position:
            raise CommandError(f"the sink {name} has only received the records up to {position}: nothing is replayed")
        if first > last:
            raise CommandError(f"there are no records from {first} to {last} in the journal: nothing is replayed")
        keys = tuple(dict.fromkeys(arguments.keys)) if arguments.keys else None
        is_trimmed = wanted < extent.first or _reaches_back(arguments.begin, extent)
        began = position if durable.progress is None else durable.progress.began
        return cls(Replay(first=first, last=last, keys=keys), position, extent, is_trimmed=is_trimmed, began=began)

    def told(self, name: str) -> Iterator[str]:
        first, last, keys = self.order.first, self.order.last, self.order.keys
        if self._is_trimmed:
            since = "" if self._extent.oldest_at is None else f", received {times.format_time(self._extent.oldest_at)}"
            yield f"older records have been removed from the journal: it begins with {self._extent.first}{since}"
        which = "" if keys is None else f", only the keys {', '.join(map(printable, keys))}"
        there = self._position - self._extent.first + 1
        yield f"{name} gets the records {first} to {last} again: {last - first + 1} of {there} in the journal{which}"
        if first <= self._began:
            yield f"(it began after record {self._began}: it gets the records up to there for the first time)"

    def facts(self, name: str, number: int, outcome: Outcome | None) -> dict[str, Any]:
        replayed, given_up = _counts(outcome)
        return {
            "sink": name,
            "order": number,
            "from": self.order.first,
            "to": self.order.last,
            "keys": None if self.order.keys is None else list(self.order.keys),
            "records": self.order.last - self.order.first + 1,
            "of": self._position - self._extent.first + 1,
            "trimmed": self._is_trimmed,
            "done": outcome is not None and outcome.interrupted is None,
            "replayed": replayed,
            "deadLetters": given_up,
        }


async def _first(begin: Point, extent: JournalStats, journal: Journal) -> int:
    return begin.position if begin.position is not None else await first_since(journal, extent, begin.at)


async def _last(end: Point, extent: JournalStats, journal: Journal) -> int:
    return end.position if end.position is not None else await first_since(journal, extent, end.at + 1) - 1


def _reaches_back(begin: Point, extent: JournalStats) -> bool:
    """Whether a time is before the oldest record of a journal that has removed records."""
    return begin.position is None and extent.first > 1 and extent.oldest_at is not None and begin.at < extent.oldest_at


def _counts(outcome: Outcome | None) -> tuple[int, int] | tuple[None, None]:
    """The numbers of records written again and of new dead letters, None if they include other commands."""
    if outcome is None:
        return 0, 0
    before, after = outcome.before, outcome.after
    if before is None or after is None:
        return None, None
    return after.replayed - before.replayed, after.given_up_again - before.given_up_again


def _result(name: str, outcome: Outcome) -> Iterator[str]:
    replayed, given_up = _counts(outcome)
    yield f"done: {name} has the records again" if replayed is None else f"{replayed} records written to {name} again"
    if given_up:
        yield f"{given_up} became dead letters: ingestd sinks dead-letters list {name}"
