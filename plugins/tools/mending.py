"""`ingestd store upgrade` and `acknowledge-loss`: the store of an earlier version, and one that has lost data."""

from __future__ import annotations

import argparse

from ingestd.api.backend import MissingPartitions
from ingestd.api.output import write
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

__all__ = ["acknowledge_loss", "upgrade"]


async def upgrade(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Bring the data to this version, as the next start of the daemon would."""
    done = await Backends(config, plugins).upgrade(keep=not arguments.no_copy)
    write(done or ["the store is of this version already"])


async def acknowledge_loss(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    is_any = False
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        for partition in backends.partitions:
            with missing.tolerating(partition):
                loss = partition.store.loss
                if await partition.store.clear_loss():
                    is_any = True
                    write([f"acknowledged: {f'partition {partition.name}: ' if partition.name else ''}{loss}"])
    if not is_any:
        write(["there is no loss of data to acknowledge"])
    missing.check("a loss there is not acknowledged")
