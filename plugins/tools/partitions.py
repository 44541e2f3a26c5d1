"""`ingestd partitions show`: where the partitions are, and which tenants load them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.check_result import show_size
from ingestd.api.journal import Journal, JournalStats, size_of
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.terminal import printable, table

from .sinks.moments import first_since
from .sinks.partitions import in_each

__all__ = ["Load", "TenantLoad", "look_at_load", "show"]

_WINDOW = 5 * 60_000  # milliseconds over which rates are measured
_SAMPLE = 1000  # records of each partition; a store may have a thousand partitions
_BLOCK = 100  # successive records of the sample
_MOST_TENANTS = 10  # busiest tenants of a partition that the table shows
_FROM_CALLERS = ("event", "identify")


class TenantLoad(NamedTuple):
    """What a tenant adds to a partition in a second, with events and identify requests as `events`."""

    events: float
    bytes: float
    """Of all records, derived ones included."""

    def facts(self) -> dict[str, float]:
        return {"eventsPerSecond": round(self.events, 3), "bytesPerSecond": round(self.bytes, 1)}


class Load(NamedTuple):
    """The journal of a partition, and the load of its tenants, the busiest first."""

    extent: JournalStats
    tenants: Mapping[str, TenantLoad]


def _total_of(loads: Iterable[TenantLoad]) -> TenantLoad:
    return TenantLoad(*(sum(rates) for rates in zip((0.0, 0.0), *loads, strict=True)))


class _Shown(NamedTuple):
    """A partition as the command shows it."""

    name: str
    place: Mapping[str, str | int]
    """As `Backend.places` returns it."""
    load: Load
    asked: Sequence[str]
    """The tenants to show; empty for all that have sent something."""

    @property
    def tenants(self) -> Mapping[str, TenantLoad]:
        found = self.load.tenants
        return {tenant: found.get(tenant, TenantLoad(0.0, 0.0)) for tenant in self.asked} if self.asked else found

    def facts(self) -> dict[str, Any]:
        extent, total = self.load.extent, _total_of(self.load.tenants.values())
        tenants = [{"tenant": tenant, **rates.facts()} for tenant, rates in self.tenants.items()]
        journal = {"records": extent.records, "bytes": extent.bytes}
        return {"partition": self.name, **self.place, **journal, **total.facts(), "tenants": tenants}


async def show(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    asked = list(dict.fromkeys(arguments.tenants))
    async with open_backends(config, plugins) as backends:
        owners = {tenant: backends.of_tenant(tenant) for tenant in asked}
        chosen = [each for each in backends.partitions if not asked or each in owners.values()]
        places = dict(zip(backends.partitions, await backends.places(), strict=True))
        missing = MissingPartitions(chosen)

        async def look(partition: Partition) -> _Shown:
            load = await look_at_load(partition.journal, times.now())
            own = [tenant for tenant in asked if owners[tenant] is partition]
            return _Shown(partition.name, places[partition], load, own)

        shown = await in_each(chosen, missing, look)
    write_result(*(each.facts() for each in shown), lines=_page(shown), as_json=arguments.json)
    missing.check("the load there is unknown")


async def look_at_load(journal: Journal, now: int) -> Load:
    """The load in the last minutes, estimated by a sample of the records if there are many. Raises `Unavailable`."""
    extent = await journal.extent()
    if extent.oldest_at is None:
        return Load(extent, {})
    begin = max(now - _WINDOW, extent.oldest_at)
    position = await first_since(journal, extent, begin) - 1
    step = max(_BLOCK, (extent.last - position) * _BLOCK // _SAMPLE)
    events: defaultdict[str, float] = defaultdict(float)
    sizes: defaultdict[str, float] = defaultdict(float)
    while position < extent.last:
        records = [each for each in await journal.read(position, _BLOCK) if each.position <= extent.last]
        if not records:  # retention has removed them
            break
        end = records[-1].position if step == _BLOCK else min(position + step, extent.last)
        weight = (end - position) / len(records)  # these records stand for those up to the next block
        for record in records:
            tenant = record.envelope().tenant or ""
            events[tenant] += weight * (record.type in _FROM_CALLERS)
            sizes[tenant] += weight * size_of(record)
        position = end
    seconds = max(1.0, (now - begin) / 1000)
    rates = {tenant: TenantLoad(events[tenant] / seconds, size / seconds) for tenant, size in sizes.items()}
    return Load(extent, dict(sorted(rates.items(), key=lambda each: each[1], reverse=True)))


def _page(shown: Sequence[_Shown]) -> Iterator[str]:
    places = [*dict.fromkeys(name for each in shown for name in each.place)]
    heads = ["PARTITION", *map(str.upper, places), "RECORDS", "SIZE", "TENANT", "EVENTS/S", "BYTES/S"]
    rows = [heads]
    for each in shown:
        extent, tenants = each.load.extent, [*each.tenants.items()]
        place = [str(each.place.get(name, "-")) for name in places]
        journal = [str(extent.records), show_size(extent.bytes)]
        rows.append([each.name or "-", *place, *journal, "(all)", *_rates(_total_of(each.load.tenants.values()))])
        most = len(tenants) if each.asked else _MOST_TENANTS
        blank = [""] * (len(places) + 3)
        rows += [[*blank, printable(tenant) or "-", *_rates(rates)] for tenant, rates in tenants[:most]]
        if others := [rates for _, rates in tenants[most:]]:
            rows.append([*blank, f"({len(others)} others)", *_rates(_total_of(others))])
    yield from table(rows, right={len(heads) - 5, len(heads) - 4, len(heads) - 2, len(heads) - 1})


def _rates(load: TenantLoad) -> list[str]:
    return [f"{load.events:.1f}", show_size(round(load.bytes))]
