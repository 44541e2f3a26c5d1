"""The checks of `ingestd check` in the store: its health, the journal, the cursors of consumers, and the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

from ingestd.api import times
from ingestd.api.check_result import CheckResult, fault, show_age, show_size
from ingestd.api.consumer import Consumer
from ingestd.api.errors import IngestdError
from ingestd.api.journal import Cursor, Journal, JournalStats
from ingestd.config import Config, JournalOptions
from ingestd.hooks.caller import HookFailure
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.storage.store_loss import CURE

from .report import Report

__all__ = ["look_at_store"]

_LATE = 5 * 60_000
"""Milliseconds after which a record that waits for a consumer of a running daemon leads to a warning."""
_CLOCK_SLACK = 5_000
"""Milliseconds that the newest record may be ahead of the clock: clocks of machines differ."""
_NEARLY_FULL = 0.9


async def look_at_store(
    report: Report, config: Config, plugins: Plugins, consumers: Iterable[Consumer], faulty: Collection[str]
) -> int | None:
    """Add the groups store, journal, consumers and clock. Returns the process of the daemon that has the store.

    `faulty` are the names of consumers whose sections have faults. The group sinks reports these faults.
    """
    pid: int | None = None
    try:
        async with open_backends(config, plugins) as backends:
            found = await backends.describe()
            if backends.store.loss is not None:
                found.append(CheckResult("loss", f"{backends.store.loss}; {CURE}", "unavailable"))
            report.add("store", found)
            try:
                report.add("plugins", await plugins.hooks.advise(backends.store))
            except HookFailure as failure:  # it does not affect the other checks
                report.add("plugins", [fault("advice", failure)])
            pid = next((each.facts["pid"] for each in found if each.name == "daemon" and "pid" in each.facts), None)
            journal, extent, now = backends.journal, await backends.journal.extent(), times.now()
            report.add("journal", [_size(extent, config.journal, now)])
            # Without a running daemon, every consumer is late.
            late = None if pid is None else _LATE
            report.add("consumers", [each async for each in _consumers(journal, consumers, faulty, now, late=late)])
            newest = await journal.read(extent.last - 1, 1) if extent.records else []
            report.add("clock", [_clock(now, newest[0].at if newest else None)])
    except (IngestdError, OSError) as error:
        report.add("store", [fault("store", error)])
    return pid


def _size(extent: JournalStats, options: JournalOptions, now: int) -> CheckResult:
    facts: dict[str, Any] = {name: getattr(extent, name) for name in ("records", "bytes", "first", "last")}
    text = f"{extent.records} records, {show_size(extent.bytes)}"
    if extent.oldest_at is not None:
        age = max(0, now - extent.oldest_at)
        text += f", the oldest received {show_age(age)} ago"
        facts["oldestAgeMilliseconds"] = age
    full = options.max_size is not None and extent.bytes >= _NEARLY_FULL * options.max_size
    if options.max_size is not None:
        text += f"; {'nearly full: ' if full else ''}max_size = {options.max_size}, on_full = {options.on_full}"
        facts["maxBytes"] = int(options.max_size)
    return CheckResult("size", text, "warning" if full else "ok", facts)


async def _consumers(
    journal: Journal, configured: Iterable[Consumer], faulty: Collection[str], now: int, *, late: int | None
) -> AsyncIterator[CheckResult]:
    consumers = {consumer.name: consumer for consumer in configured}
    cursors = {cursor.name: cursor for cursor in await journal.cursors()}
    extent = await journal.extent()
    for name, consumer in consumers.items():
        if name not in cursors:
            first = "the next record" if consumer.start == "now" else "the first record in the journal"
            yield CheckResult(name, f"new: it will start with {first}", facts={"configured": True})
    for name, cursor in cursors.items():
        lag = max(0, extent.last - max(cursor.position, extent.first - 1))
        age = await _oldest_age(journal, cursor, now) if lag else 0
        text = f"{lag} records behind, the oldest received {show_age(age)} ago" if lag else "up to date"
        is_late = late is not None and age > late
        is_configured = name in consumers or name in faulty
        if name in faulty:
            text += "; the section of this sink has a fault"
        elif not is_configured:
            text += "; no sink or plugin with this name is configured any more"
        facts = {"position": cursor.position, "lag": lag, "lagMilliseconds": age, "configured": is_configured}
        yield CheckResult(name, text, "warning" if is_late or not is_configured else "ok", facts)


async def _oldest_age(journal: Journal, cursor: Cursor, now: int) -> int:
    """The age of the first record after a consumer's cursor in milliseconds, 0 without such a record."""
    records = await journal.read(cursor.position, 1)
    return max(0, now - records[0].at) if records else 0


def _clock(now: int, newest_at: int | None) -> CheckResult:
    text = f"{times.format_time(now)} UTC"
    ahead = 0 if newest_at is None else newest_at - now
    if ahead <= _CLOCK_SLACK:
        return CheckResult("now", text)
    return CheckResult("now", f"{text}; the newest record is {show_age(ahead)} ahead: check the clock", "warning")
