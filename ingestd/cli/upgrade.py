"""`ingestd store upgrade`: brings the data of an earlier version to this one, as the next start of the daemon would."""

from __future__ import annotations

import argparse

from ingestd.api.output import write
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends

__all__ = ["add_arguments", "upgrade"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-copy", action="store_true", help="keep no copy of the former file, for a disk without room for it"
    )


async def upgrade(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    done = await Backends(config, plugins).upgrade(keep=not arguments.no_copy)
    write(done or ["the store is of this version already"])
