"""`ingestd store backup` and `ingestd store restore`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingestd.api.output import write
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends

__all__ = ["back_up", "restore"]


async def back_up(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = _file(arguments)
    await Backends(config, plugins).single.back_up(file)
    write([f"written and checked: {file} ({file.stat().st_size} bytes)"])


async def restore(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = _file(arguments)
    kept = await Backends(config, plugins).single.restore(file)
    write([f"restored: {file}"])
    if kept is not None:
        write([f"the former store is {kept}"])
    write(["the data stored since the backup is lost; after the start, run `ingestd store acknowledge-loss`"])


def _file(arguments: argparse.Namespace) -> Path:
    file: Path = arguments.file
    return file.absolute()
