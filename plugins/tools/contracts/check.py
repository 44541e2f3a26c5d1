"""`ingestd schemas check`: the events of the journal that the schemas of the configuration would refuse."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import CommandError
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.terminal import printable, table
from ingestd.validation.validator import Validator

from .trial import Trial, try_schemas

__all__ = ["check_schemas"]


async def check_schemas(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Raises `CommandError` if the schemas refuse an event, so that the exit code is 1."""
    validator = Validator.load(config.schemas.directory)
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        there = []
        for partition in backends.partitions:
            with missing.tolerating(partition):
                await partition.journal.extent()
                there.append(partition)
        trial = await try_schemas(validator, there, arguments.against)
    write_result(_facts(trial), lines=_lines(trial), as_json=arguments.json)
    missing.check("their events were not tried")
    refused = trial.refused.total()
    if refused:
        raise CommandError(f"the schemas refuse {refused} of {trial.events.total()} events")


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "events": trial.events.total(),
        "refused": trial.refused.total(),
        "keys": [
            {
                "key": key,
                "events": trial.events[key],
                "refused": count,
                "faults": [
                    {"pointer": each.pointer, "message": each.message, "events": events}
                    for each, events in trial.of(key)
                ],
            }
            for key, count in trial.refused.most_common()
        ],
    }


def _lines(trial: Trial) -> Iterator[str]:
    rows = [("KEY", "POINTER", "EVENTS", "REASON")]
    for key, count in trial.refused.most_common():
        rows.append((printable(key), "", f"{count} of {trial.events[key]}", "would be refused"))
        rows += [("", printable(each.pointer), str(events), printable(each.message)) for each, events in trial.of(key)]
    if len(rows) > 1:
        yield from table(rows)
    else:
        yield f"the schemas take all {trial.events.total()} events"
