"""The command `ingestd attribution report`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

from ingestd.api import times
from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Daemon
from ingestd.api.output import columns, write, write_data, write_json
from ingestd.support.terminal import printable

from ..attribution.models import MODELS
from .columns import columns_of
from .journals import add_costs, add_records
from .periods import Periods
from .reading import ReportRules
from .report import Report
from .text import Form, csv_lines, members, table

__all__ = ["report"]

_PAGE = 500
_DAY = 86_400_000


async def report(arguments: Namespace, daemon: Daemon, rules: ReportRules) -> None:
    by = arguments.by or (["channel"] if arguments.paths else ["source"])
    by_columns = columns_of(by)
    if arguments.paths and {"model", "product"} & {*by}:
        raise CommandError("--paths shows touchpoints, which have no product and no model: leave them out of --by")
    periods = Periods(
        arguments.since, arguments.until, arguments.time_zone, every=arguments.every, compare=arguments.compare
    )
    if arguments.until is not None and periods.span.since >= periods.span.until:
        raise CommandError("--until is not after --since")
    made = Report(
        by_columns, (arguments.model, *MODELS) if "model" in by else (arguments.model,), numbers=periods.number,
        first=periods.first, last=periods.last, read_touch=lambda record: rules.touch_of(record, daemon.unusable_ids),
        unusable_ids=daemon.unusable_ids, channel=rules.channels.of_texts, tenant=arguments.tenant,
        since=periods.since - _DAY,  # a session that began before has an event in this day
        until=periods.until, keep_case=arguments.keep_case, paths=arguments.paths,
    )  # fmt: skip
    partitions = daemon.partitions if arguments.tenant is None else daemon.all_of_tenant(arguments.tenant)
    missing = MissingPartitions(partitions)
    oldest, undecided = [], 0
    for partition in partitions:
        with missing.tolerating(partition):
            extent = await partition.journal.extent()
            undecided += await add_records(made, partition.journal, 0, _go_on, size=_PAGE)
            if extent.first > 1:
                oldest.append(times.now() if extent.oldest_at is None else extent.oldest_at)
    if made.takes_costs:
        await add_costs(made, periods, daemon, missing, life=rules.cost_life, pause=_go_on)
    lines = made.lines(compare=arguments.compare)
    form = Form(
        ("path",) if arguments.paths else by_columns,
        periods.label,
        every=arguments.every is not None,
        compare=arguments.compare,
        models=MODELS if "model" in by else (),
        visitors=made.visitors,
    )
    notes = [*_notes(made, periods, max(oldest, default=None), undecided)]
    if arguments.json:
        write_json(*(members(line, form) for line in lines))
    elif arguments.csv:
        texts = csv_lines(lines, form)
        write_data(map(printable, texts) if sys.stdout.isatty() else texts, end="\r\n")
    else:
        if periods.before is not None and arguments.every is None:
            before = f"{periods.text(periods.before.since)} to {periods.text(periods.before.until)}"
            notes.insert(0, f"compared with {before}")
        write(table(lines, form, columns()) if lines else ["no orders"])
        write(["", *notes] if notes else [])
        notes = []
    sys.stderr.writelines(f"{note}\n" for note in notes)
    missing.check("orders of its tenants are missing here")


async def _go_on() -> None:
    """A command has nobody to wait for."""


def _notes(made: Report, periods: Periods, oldest: int | None, undecided: int) -> Iterator[str]:
    """What the report lacks. `oldest` is the time of the oldest record, if a journal has removed earlier ones."""
    if made.not_counted:
        yield f"not counted: amounts over 10^12, of {made.not_counted} orders"
    if oldest is not None and oldest > periods.since:
        yield f"the journal begins at {periods.text(oldest)}: earlier orders and sessions are not counted"
    if undecided:
        yield f"missing: {undecided} orders that attribution has not read yet"
