"""The commands `ingestd costs import|list|remove`."""

from __future__ import annotations

from argparse import Namespace
from datetime import date, datetime, timedelta

import msgspec

from ingestd.api import times
from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Daemon
from ingestd.api.output import write_result
from ingestd.support.terminal import printable, table

from ..auth.key_registry import read_keys
from .cost_file import COLUMNS, read_cost_file
from .costs import Changes, Cost, change, scan_costs
from .reading import ReportRules

__all__ = ["COMMANDS"]


async def _import(arguments: Namespace, daemon: Daemon, rules: ReportRules) -> None:
    today = datetime.fromtimestamp(times.now() / 1000, rules.time_zone.zone).date()
    tenant = await _tenant(arguments.tenant, daemon)
    found = read_cost_file(arguments.file, oldest=today - timedelta(milliseconds=rules.cost_life), newest=today)
    store = daemon.of_tenant(tenant).store
    changes = await change(store, tenant, found.costs, life=rules.cost_life, dry_run=arguments.dry_run)
    _show(changes, tenant, arguments, repeated=found.repeated)


async def _list(arguments: Namespace, daemon: Daemon, rules: ReportRules) -> None:
    rows: list[tuple[str, date, Cost]] = []
    partitions = daemon.partitions
    missing = MissingPartitions(partitions)
    for partition in partitions:
        with missing.tolerating(partition):
            async for tenant, day, costs in scan_costs(partition.store):
                if arguments.tenant in {None, tenant} and _is_within(day, arguments):
                    rows += [(tenant, day, cost) for cost in costs]
    rows.sort(key=lambda row: (row[1], row[0], tuple(each or "" for each in row[2].key)))
    told = [(tenant, str(day), *msgspec.structs.astuple(cost)) for tenant, day, cost in rows]
    names = ("tenant", *COLUMNS)
    facts = [dict(zip(names, each, strict=True)) | {"cost": float(each[6])} for each in told]
    texts = [["" if cell is None else printable(str(cell)) for cell in each] for each in told]
    lines = table([[*map(str.upper, names)], *texts], right=(6, 7, 8)) if rows else ["no costs"]
    write_result(*facts, lines=lines, as_json=arguments.json)
    missing.check("costs of its tenants are missing here")


def _is_within(day: date, arguments: Namespace) -> bool:
    return (arguments.since is None or day >= arguments.since) and (arguments.until is None or day <= arguments.until)


async def _remove(arguments: Namespace, daemon: Daemon, rules: ReportRules) -> None:
    tenant = await _tenant(arguments.tenant, daemon)
    store = daemon.of_tenant(tenant).store
    days = {day: () async for name, day, _ in scan_costs(store) if name == tenant and _is_within(day, arguments)}
    changes = await change(store, tenant, days, life=rules.cost_life, replace=True, dry_run=arguments.dry_run)
    _show(changes, tenant, arguments)


async def _tenant(given: str | None, daemon: Daemon) -> str:
    if given is not None:
        return given
    tenants = sorted({key.tenant for key in (await read_keys(daemon.store.begin(times.now()))).values()})
    if len(tenants) != 1:
        known = f", one of {', '.join(tenants)}" if tenants else ""
        raise CommandError(f"name the shop with --tenant{known}")
    return tenants[0]


def _show(changes: Changes, tenant: str, arguments: Namespace, *, repeated: int = 0) -> None:
    counts = {"new": changes.new, "replaced": changes.replaced, "removed": changes.removed, "same": changes.same}
    text = ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none"
    would = "would be " if arguments.dry_run else ""
    lines = [f"costs of {printable(tenant)}: {would}{text}"]
    if repeated:
        lines.append(f"{repeated} lines replace earlier lines of the file with the same day and campaign")
    facts = {"tenant": tenant, **counts, "repeated": repeated, "dryRun": arguments.dry_run}
    write_result(facts, lines=lines, as_json=arguments.json)


COMMANDS = {"import": _import, "list": _list, "remove": _remove}
