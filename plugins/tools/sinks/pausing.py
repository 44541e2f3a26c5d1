"""`ingestd sinks pause|resume`: a paused sink receives nothing, and its records wait in the journal."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.check_result import show_size
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.delivery.operator_commands import set_paused
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends

from .partitions import check_configured

__all__ = ["pause", "resume", "set_in_all"]

_AT_ONCE = 32  # partitions


async def pause(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await _set(arguments, config, plugins, paused=True)


async def resume(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await _set(arguments, config, plugins, paused=False)


async def _set(arguments: argparse.Namespace, config: Config, plugins: Plugins, *, paused: bool) -> None:
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        await check_configured(name, config, backends.partitions)
        changed = await set_in_all(backends.partitions, missing, name, paused=paused)
    resumed = f"{name} {'continues where it stopped' if changed else 'was not paused'}"
    lines = _paused(name, config, changed=changed) if paused else [resumed]
    write_result({"sink": name, "paused": paused, "changed": changed}, lines=lines, as_json=arguments.json)
    missing.check(f"{name} is not {'paused' if paused else 'resumed'} there")


async def set_in_all(partitions: Sequence[Partition], missing: MissingPartitions, name: str, *, paused: bool) -> bool:
    """Pause or resume a sink in many partitions at once, and return whether that changed anything.

    A partition that cannot store takes seconds to say so. One after the other, they would hold up the pause of others.
    """
    changed, some = [], asyncio.Semaphore(_AT_ONCE)

    async def set_in(partition: Partition) -> None:
        async with some:
            with missing.tolerating(partition):
                changed.append(await set_paused(partition.store, name, paused=paused))

    await asyncio.gather(*map(set_in, partitions))
    return any(changed)


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
