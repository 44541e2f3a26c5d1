"""`ingestd sinks verify`: which records a sink's destination lacks, and which ones it has that the journal does not."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from ingestd.api import times
from ingestd.api.errors import CommandError, SinkFailure, SinkRetry, Unavailable
from ingestd.api.output import write_result
from ingestd.api.sink import Digest, Sink
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.terminal import printable, table

from ..sinks.partitions import check_configured
from ..sinks.running import make_feeder
from .expected import HOUR, Expected, by_day, find_due, kept_since

__all__ = ["Result", "compare", "verify"]

_T = TypeVar("_T")
_DAY = 24 * HOUR
_MOST_IDS = 500_000  # of hours that are compared at once
_PATIENCE = 600.0  # seconds for an answer of the destination, which may be large, or gone without a word
_SHOWN = 20  # ids of each kind for people
_LISTED = 10_000  # for programs


class Result:
    """What differs: counts of all, and the first ids of each kind, since a destination may have lost everything."""

    def __init__(self, since: int, until: int) -> None:
        self.since, self.until = since, until
        self.expected: Mapping[int, Digest] = {}
        """By day since 1970, as the next two."""
        self.missing = Counter[int]()
        self.extra = Counter[int]()
        self.missing_ids: list[tuple[str, str]] = []
        """With their places in the journal."""
        self.extra_ids: list[str] = []
        self.dead = 0

    @property
    def differs(self) -> bool:
        return self.missing.total() + self.extra.total() > 0

    def add(self, day: int, missing: Mapping[str, str], extra: Sequence[str]) -> None:
        self.missing[day] += len(missing)
        self.extra[day] += len(extra)
        self.missing_ids += islice(missing.items(), _LISTED - len(self.missing_ids))
        self.extra_ids += extra[: _LISTED - len(self.extra_ids)]

    def facts(self, sink: str) -> dict[str, Any]:
        return {
            "sink": sink,
            "since": times.format_time(self.since),
            "until": times.format_time(self.until),
            "expected": sum(each.size for each in self.expected.values()),
            "deadLetters": self.dead,
            "missing": self.missing.total(),
            "tooMany": self.extra.total(),
            "days": [
                {"day": date, "expected": expected, "missing": lacking, "tooMany": more}
                for date, expected, lacking, more in self._days()
            ],
            "missingIds": [{"id": each, "position": place} for each, place in self.missing_ids],
            "tooManyIds": self.extra_ids,
        }

    def lines(self, sink: str) -> Iterator[str]:
        rows = [(date, *map(str, counts)) for date, *counts in self._days()]
        yield f"{sink}, records received from {times.format_time(self.since)} to {times.format_time(self.until)}"
        yield from table([("DAY", "EXPECTED", "MISSING", "TOO MANY"), *rows])
        if self.dead:
            yield f"{self.dead} of that time are dead letters: ingestd sinks dead-letters list {sink}"
        for id_, place in self.missing_ids[:_SHOWN]:
            yield f"missing: {printable(id_)}, position {place}"
        for id_ in self.extra_ids[:_SHOWN]:
            yield f"too many: {printable(id_)}"
        if self.missing_ids:
            yield f"ingestd sinks replay {sink} --from POSITION --to POSITION writes records again"

    def _days(self) -> Iterator[tuple[str, int, int, int]]:
        for day in sorted({*self.expected, *self.missing, *self.extra}):
            count = self.expected[day].size if day in self.expected else 0
            yield times.format_time(day * _DAY)[:10], count, self.missing[day], self.extra[day]


async def verify(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Raises `CommandError` if anything is missing or too many, so that the exit code is 1."""
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        await check_configured(name, config, backends.partitions)
        consumer = make_feeder(name, config, plugins)
        sink = consumer.sink
        if not sink.can_verify:
            kinds = ", ".join(sorted(kind for kind, each in plugins.sinks.items() if each.can_verify))
            raise CommandError(
                f"a sink of the type {consumer.options.type} cannot be asked for its ids; these can: {kinds or 'none'}"
            )
        until = times.now() // 1000 * 1000
        # The cursors before the destination: what they are past is there. The journal after it: what is there is known.
        dues = [await find_due(name, each) for each in backends.partitions]
        since = max(-(-arguments.since // 1000) * 1000, await kept_since(dues))
        result = Result(since, max(since, until))
        expected = Expected(dues, consumer, since, until)
        try:
            await compare(sink, expected, result)
        except SinkRetry as error:
            raise Unavailable(f"the sink {name} cannot be verified now: {error}") from error
        except SinkFailure as error:
            raise CommandError(f"the sink {name} cannot be verified: {error}") from error
        finally:
            await sink.close()
    write_result(result.facts(name), lines=result.lines(name), as_json=arguments.json)
    if result.differs:
        raise CommandError(f"the sink {name} differs from the journal")


async def compare(sink: Sink, expected: Expected, result: Result) -> None:
    """Compare days, then the hours of days that differ, then the ids of hours that differ."""
    if result.since >= result.until:
        return
    days = await _asked(sink.digests(result.since, result.until, _DAY))
    hours = await expected.digests()
    result.dead = expected.dead
    result.expected = by_day(hours)
    there: dict[int, Digest] = {}
    differing = {day for day in {*days, *result.expected} if days.get(day) != result.expected.get(day)}
    for day in sorted(differing):
        there |= await _asked(sink.digests(max(day * _DAY, result.since), min((day + 1) * _DAY, result.until), HOUR))
    wrong = [hour for hour in {*there, *hours} if hour // 24 in differing and there.get(hour) != hours.get(hour)]
    group: list[int] = []
    count = 0
    for hour in sorted(wrong):
        group.append(hour)
        count += max(hours.get(hour, Digest(0, 0)).size, there.get(hour, Digest(0, 0)).size)
        if count >= _MOST_IDS:
            await _compare_ids(sink, expected, group, result)
            group, count = [], 0
    if group:
        await _compare_ids(sink, expected, group, result)


async def _compare_ids(sink: Sink, expected: Expected, hours: Sequence[int], result: Result) -> None:
    there: dict[int, Counter[str]] = {}
    spans = [(max(begin * HOUR, result.since), min(end * HOUR, result.until)) for begin, end in _spans(hours)]
    for span in spans:
        there.setdefault(span[0] // _DAY, Counter()).update(await _asked(sink.ids(*span)))
    missing: dict[int, dict[str, str]] = {day: {} for day in there}
    chosen = frozenset(hours)
    async for each in expected.records():
        if each.at // HOUR not in chosen:
            continue
        day = each.at // _DAY
        if each.id not in there[day]:
            if each.expected:
                missing[day][each.id] = each.place
        elif there[day][each.id]:  # an import may have stored a record twice, which is one row in most destinations
            there[day][each.id] -= 1  # a further row with the id is too many
    extra = {day: [*(+counts).elements()] for day, counts in there.items()}
    known = await expected.newer_ids() if any(extra.values()) else set()
    kept = await kept_since(expected.dues)  # retention may have removed records that were there when it was read
    for begin, end in spans if any(extra.values()) else ():
        if begin < kept:
            known.update(await _asked(sink.ids(begin, min(end, kept))))
    for day in there:
        result.add(day, missing[day], [each for each in extra[day] if each not in known])


async def _asked(answer: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await answer
    except TimeoutError:
        raise SinkRetry(f"no answer for {_PATIENCE:g} s") from None


def _spans(hours: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted hours as spans, each within a day, from the first hour to behind the last one."""
    begin = end = hours[0]
    for hour in hours:
        if hour > end or hour // 24 != begin // 24:
            yield begin, end
            begin = hour
        end = hour + 1
    yield begin, end
