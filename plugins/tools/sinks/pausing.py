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

from .partitions import check_configured, in_each

__all__ = ["pause", "resume"]


async def pause(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await _set(arguments, config, plugins, paused=True)


async def resume(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await _set(arguments, config, plugins, paused=False)


async def _set(arguments: argparse.Namespace, config: Config, plugins: Plugins, *, paused: bool) -> None:
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        await check_configured(name, config, backends.partitions)
        changed = any(
            await in_each(backends.partitions, missing, lambda each: set_paused(each.store, name, paused=paused))
        )
    resumed = f"{name} {'continues where it stopped' if changed else 'was not paused'}"
    lines = _paused(name, config, changed=changed) if paused else [resumed]
    write_result({"sink": name, "paused": paused, "changed": changed}, lines=lines, as_json=arguments.json)
    missing.check(f"{name} is not {'paused' if paused else 'resumed'} there")


def _paused(name: str, config: Config, *, changed: bool) -> Iterator[str]:
    yield f"{name} is {'' if changed else 'already '}paused, also after restarts, until ingestd sinks resume {name}"
    journal = config.journal
    if journal.wait_for_consumers:
        yield "the journal keeps all records that the sink has not received, despite keep_for and keep_size"
    elif journal.keep_for is not None or journal.keep_size is not None:
        yield "the journal does not wait for the sink (wait_for_consumers = false): records can be removed undelivered"
    if journal.max_size is not None:
        then = "events are refused" if journal.on_full == "refuse" else "the oldest records are dropped, undelivered"
        yield f"once the journal holds {show_size(int(journal.max_size))} (max_size), {then}"
