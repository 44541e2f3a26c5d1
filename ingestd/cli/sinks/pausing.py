"""`ingestd sinks pause|resume`: a paused sink receives nothing, and its records wait in the journal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ingestd.api.backend import MissingPartitions
from ingestd.api.check_result import show_size
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.delivery.operator_commands import set_paused
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends

from .partitions import check_configured

__all__ = ["pause", "resume"]


async def pause(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    changed, missing = await _set(arguments, config, plugins, paused=True)
    facts = {"sink": arguments.name, "paused": True, "changed": changed}
    write_result(facts, lines=_told(arguments.name, config, changed=changed), as_json=arguments.json)
    missing.check(f"{arguments.name} is not paused there")


async def resume(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    changed, missing = await _set(arguments, config, plugins, paused=False)
    facts = {"sink": arguments.name, "paused": False, "changed": changed}
    line = f"{arguments.name} {'continues where it stopped' if changed else 'was not paused'}"
    write_result(facts, lines=[line], as_json=arguments.json)
    missing.check(f"{arguments.name} is not resumed there")


async def _set(
    arguments: argparse.Namespace, config: Config, plugins: Plugins, *, paused: bool
) -> tuple[bool, MissingPartitions]:
    """Whether that changed anything, and the partitions in which the sink goes on as before."""
    changed = False
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        await check_configured(arguments.name, config, backends.partitions)
        for partition in backends.partitions:
            with missing.tolerating(partition):
                changed |= await set_paused(partition.store, arguments.name, paused=paused)
    return changed, missing


def _told(name: str, config: Config, *, changed: bool) -> Iterator[str]:
    yield f"{name} is {'' if changed else 'already '}paused, also after restarts, until ingestd sinks resume {name}"
    journal = config.journal
    if journal.wait_for_consumers:
        yield "the journal keeps all records that the sink has not received, despite keep_for and keep_size"
    elif journal.keep_for is not None or journal.keep_size is not None:
        yield "the journal does not wait for the sink (wait_for_consumers = false): records can be removed undelivered"
    if journal.max_size is not None:
        then = "events are refused" if journal.on_full == "refuse" else "the oldest records are dropped, undelivered"
        yield f"once the journal holds {show_size(int(journal.max_size))} (max_size), {then}"
