"""`ingestd partitions place TENANT --partition NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from ingestd.api.backend import Partition
from ingestd.api.errors import CommandError
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.names import nearest
from ingestd.support.terminal import printable

from .move import TenantMove

__all__ = ["place"]


async def place(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    tenant = arguments.tenant
    async with open_backends(config, plugins) as backends:
        if len(backends.partitions) == 1:
            raise CommandError("this store has a single partition, so there is no other place for a tenant")
        target = _index_of(arguments.partition, backends.partitions)
        with closing(TenantMove(backends, plugins, tenant, quiet=arguments.quiet or arguments.json)) as move:
            moved = await move.run(target)
        name = backends.partitions[target].name
    seconds = None if moved is None else round(moved.seconds, 3)
    entries = None if moved is None else moved.entries
    told = {"tenant": tenant, "partition": name, "entries": entries, "refusedSeconds": seconds}
    text = f"{printable(tenant)} is in partition {name}"
    if moved is not None:
        text += f" now, with {moved.entries} entries of state; events were refused for {moved.seconds:.1f} s"
    write_result(told, lines=[text], as_json=arguments.json)


def _index_of(name: str, partitions: Sequence[Partition]) -> int:
    names = [each.name for each in partitions]
    if name in names:
        return names.index(name)
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"the partitions are {names[0]} to {names[-1]}"
    raise CommandError(f"there is no partition {printable(name)!r}; {hint}")
