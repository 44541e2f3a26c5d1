"""The checks of `ingestd check` in the store: its health, the journal, the cursors of consumers, and the clock."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition, describe_partition
from ingestd.api.check_result import CheckResult, fault, show_age, show_size
from ingestd.api.consumer import Consumer
from ingestd.api.errors import ConfigError, IngestdError, Unavailable, UpgradeNeeded
from ingestd.api.journal import Journal, JournalStats
from ingestd.api.store import Store
from ingestd.config import Config, JournalOptions
from ingestd.hooks.caller import HookFailure
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends
from ingestd.storage.copy_mark import refuse_unfinished
from ingestd.storage.placements import unfinished
from ingestd.storage.store_loss import CURE
from ingestd.validation.validator import Validator

from ..contracts import trial
from ..sinks.partitions import in_each
from .report import Report
from .state import look_at_state

__all__ = ["look_at_store"]

_LATE = 5 * 60_000
"""Milliseconds after which a record that waits for a consumer of a running daemon leads to a warning."""
_CLOCK_SLACK = 5_000
"""Milliseconds that the newest record may be ahead of the clock: clocks of machines differ."""
_NEARLY_FULL = 0.9
_TRIAL = 2.0
"""Seconds for which schemas are tried on the newest events."""


async def look_at_store(
    report: Report,
    config: Config,
    plugins: Plugins,
    consumers: Iterable[Consumer],
    faulty: Collection[str],
    *,
    validator: Validator | None,
) -> int | None:
    """Add the groups store, journal, consumers and clock, and stored events that the schemas refuse.

    Returns the process of the daemon that has the store.

    `faulty` are the names of consumers whose sections have faults. The group sinks reports these faults.
    """
    pid: int | None = None
    try:
        async with open_backends(config, plugins) as backends:
            found = await backends.describe()
            found += await _losses(backends.partitions, backends.store, plugins)
            report.add("store", found)  # before further reads: they fail if the store refuses everything
            report.add("store", await _unfinished_copy(config, backends.partitions[0].store))
            if (move := unfinished(backends.placements.map, [each.name for each in backends.partitions])) is not None:
                report.add("store", [CheckResult("placement", move, "warning")])
            missing = MissingPartitions(backends.partitions)
            journals = await in_each(backends.partitions, missing, _Journal.of)
            away = missing.reasons.items()
            report.add("store", [CheckResult(f"partition {name}", why, "unavailable") for name, why in away])
            try:
                report.add("plugins", await plugins.hooks.advise(backends.store))
            except HookFailure as failure:  # it does not affect the other checks
                report.add("plugins", [fault("advice", failure)])
            pid = next((each.facts["pid"] for each in found if each.name == "daemon" and "pid" in each.facts), None)
            now = times.now()
            report.add("journal", _sizes(journals, config.journal, now))
            there = [each for each in backends.partitions if each.name not in missing.reasons]
            report.add("journal", await look_at_state(there, config))
            if validator is not None:
                report.add("schemas", await trial.warnings(validator, there, _TRIAL))
            # Without a running daemon, every consumer is late.
            late = None if pid is None else _LATE
            lags = [lag for each in journals for lag in await _lags(each, now)]
            report.add("consumers", _consumers(lags, consumers, faulty, late=late))
            newest = [await each.newest_at() for each in journals]
            report.add("clock", [_clock(now, max((at for at in newest if at is not None), default=None))])
    except UpgradeNeeded as error:  # the start of this version upgrades it, so nothing is wrong
        report.add("store", [CheckResult("upgrade", str(error), "warning")])
        daemons = await Backends(config, plugins).daemons()
        pid = next((each.pid for each in daemons if each.host == socket.gethostname()), None)
    except (IngestdError, OSError) as error:
        report.add("store", [fault("store", error)])
    return pid


async def _unfinished_copy(config: Config, store: Store) -> list[CheckResult]:
    try:
        await refuse_unfinished(config.place("store.url"), store)
    except ConfigError as error:
        return [CheckResult("copy", str(error), "broken")]
    return []


async def _losses(partitions: Sequence[Partition], store: Store, plugins: Plugins) -> list[CheckResult]:
    lost = [each for each in partitions if each.store.loss is not None]
    tenants: Counter[Store] | None = None
    if lost and len(partitions) > 1:
        with suppress(HookFailure, Unavailable):  # a partition is away: the number is unknown, the loss is not
            tenants = Counter(store.of_tenant(each) for each in await plugins.hooks.state_parts(store) if each)
    found = []
    for each in lost:
        number = None if tenants is None else tenants[each.store]
        where = f"{describe_partition(each.name, number)}: " if each.name else ""
        facts = {"partition": each.name, "tenants": number} if each.name else {}
        found.append(CheckResult("loss", f"{where}{each.store.loss}; {CURE}", "unavailable", facts))
    return found


class _Journal(NamedTuple):
    """The journal of a partition within reach."""

    partition: str
    journal: Journal
    extent: JournalStats

    @classmethod
    async def of(cls, partition: Partition) -> _Journal:
        return cls(partition.name, partition.journal, await partition.journal.extent())

    async def newest_at(self) -> int | None:
        """The time of the newest record in milliseconds."""
        newest = await self.journal.read(self.extent.last - 1, 1) if self.extent.records else []
        return newest[0].at if newest else None


def _sizes(journals: Sequence[_Journal], options: JournalOptions, now: int) -> Iterator[CheckResult]:
    """A line for the journal. Of several ones, a line for all of them, and one for each that is nearly full."""
    if len(journals) == 1 and not journals[0].partition:
        yield _size("size", [journals[0].extent], options, now)
        return
    extents = [each.extent for each in journals]
    if extents:
        found = _size("size", extents, options, now)
        yield found._replace(text=f"{len(extents)} partitions: {found.text}", status="ok")
    for each in journals:
        size = _size(f"partition {each.partition}", [each.extent], options, now)
        if size.status != "ok":
            yield size


def _size(name: str, extents: Sequence[JournalStats], options: JournalOptions, now: int) -> CheckResult:
    facts: dict[str, Any] = {
        "records": sum(each.records for each in extents),
        "bytes": sum(each.bytes for each in extents),
    }
    if len(extents) == 1:
        facts |= {"first": extents[0].first, "last": extents[0].last}
    text = f"{facts['records']} records, {show_size(facts['bytes'])}"
    ages = [max(0, now - each.oldest_at) for each in extents if each.oldest_at is not None]
    if ages:
        text += f", the oldest received {show_age(max(ages))} ago"
        facts["oldestAgeMilliseconds"] = max(ages)
    full = options.max_size is not None and any(each.bytes >= _NEARLY_FULL * options.max_size for each in extents)
    if options.max_size is not None:
        text += f"; {'nearly full: ' if full else ''}max_size = {options.max_size}, on_full = {options.on_full}"
        facts["maxBytes"] = int(options.max_size)
    return CheckResult(name, text, "warning" if full else "ok", facts)


class _Lag(NamedTuple):
    """How far a consumer is behind in one partition."""

    consumer: str
    partition: str
    position: int
    records: int
    age: int
    """The age of the first record after its cursor in milliseconds, 0 without such a record."""


async def _lags(journal: _Journal, now: int) -> list[_Lag]:
    """The lags of all consumers with a cursor in the partition."""
    found = []
    extent = await journal.journal.extent()
    for cursor in await journal.journal.cursors():
        lag = max(0, extent.last - max(cursor.position, extent.first - 1))
        oldest = await journal.journal.outlines(cursor.position, 1) if lag else ()
        age = max(0, now - oldest[0].at) if oldest else 0
        found.append(_Lag(cursor.name, journal.partition, cursor.position, lag, age))
    return found


def _consumers(
    lags: Sequence[_Lag], configured: Iterable[Consumer], faulty: Collection[str], *, late: int | None
) -> Iterator[CheckResult]:
    """A line for each consumer, with the sum of its lags and the largest age."""
    consumers = {consumer.name: consumer for consumer in configured}
    by_name: dict[str, list[_Lag]] = {}
    for each in lags:
        by_name.setdefault(each.consumer, []).append(each)
    for name, consumer in consumers.items():
        if name not in by_name:
            first = "the next record" if consumer.start == "now" else "the first record in the journal"
            yield CheckResult(name, f"new: it will start with {first}", facts={"configured": True})
    for name, some in by_name.items():
        oldest = max(some, key=lambda each: each.age)
        lag, age = sum(each.records for each in some), oldest.age
        text = f"{lag} records behind, the oldest received {show_age(age)} ago" if lag else "up to date"
        if lag and oldest.partition:
            text += f" in partition {oldest.partition}"
        is_late = late is not None and age > late
        is_configured = name in consumers or name in faulty
        if name in faulty:
            text += "; the section of this sink has a fault"
        elif not is_configured:
            text += "; no sink or plugin with this name is configured any more"
        facts = {"lag": lag, "lagMilliseconds": age, "configured": is_configured}
        if not oldest.partition:
            facts = {"position": oldest.position, **facts}
        yield CheckResult(name, text, "warning" if is_late or not is_configured else "ok", facts)


def _clock(now: int, newest_at: int | None) -> CheckResult:
    text = f"{times.format_time(now)} UTC"
    ahead = 0 if newest_at is None else newest_at - now
    if ahead <= _CLOCK_SLACK:
        return CheckResult("now", text)
    return CheckResult("now", f"{text}; the newest record is {show_age(ahead)} ahead: check the clock", "warning")
