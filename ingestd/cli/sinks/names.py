"""The names of sinks: configured sinks, and former sinks whose cursors are still in the journal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ingestd.api.backend import Partition
from ingestd.api.errors import CommandError
from ingestd.api.missing_partitions import MissingPartitions
from ingestd.config import Config
from ingestd.delivery.sink_consumer import PREFIX

__all__ = ["check_configured", "check_known", "known_sinks"]


async def known_sinks(config: Config, partitions: Sequence[Partition]) -> list[str]:
    """The sinks of `[sinks.NAME]` in their order, then former sinks with a cursor in a journal within reach."""
    names, missing = dict.fromkeys(config.sink_tables), MissingPartitions(partitions)
    for partition in partitions:
        with missing.tolerating(partition):
            cursors = await partition.journal.cursors()
            names |= {each.name.removeprefix(PREFIX): None for each in cursors if each.name.startswith(PREFIX)}
    return [*names]


def check_known(name: str, known: Iterable[str]) -> None:
    """Raises `CommandError` with the nearest known name."""
    known = [*known]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}" if known else "none is configured"
    raise CommandError(f"there is no sink {name!r}; {hint}")


async def check_configured(name: str, config: Config, partitions: Sequence[Partition]) -> None:
    """Raises `CommandError` for a sink that is not configured."""
    if name in config.sink_tables:
        return
    check_known(name, await known_sinks(config, partitions))
    raise CommandError(f"the sink {name} is not configured any more: restore [sinks.{name}] first")
