"""`ingestd reload`: has the daemon read its configuration again, and says what came of it. Good for `ExecReload=`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from .config import Config
from .errors import CommandError, ConfigError, Unavailable
from .loader import Plugins
from .options import Duration
from .output import write
from .run_file import RunFile, RunState, runtime_directory

__all__ = ["add_arguments", "reload"]

_LOOK = 0.05  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory", metavar="DIR", type=Path, help="the daemon's RUNTIME_DIRECTORY; default: that variable"
    )
    parser.add_argument(
        "--timeout", metavar="TIME", type=Duration.parse, default=Duration.parse("60s"),
        help="how long the reload may take; default: 60s",
    )  # fmt: skip


async def reload(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Return once the new configuration is live. `config` is not the daemon's: that is the daemon's to judge."""
    directory = arguments.directory or runtime_directory()
    if directory is None:
        raise CommandError("where is the daemon? set RUNTIME_DIRECTORY for both, or name it with --directory")
    file = RunFile(directory)
    before = file.read()
    if before is None:
        raise Unavailable(f"no daemon runs that has {directory} as its RUNTIME_DIRECTORY")
    os.kill(before.pid, signal.SIGHUP)
    try:
        async with asyncio.timeout(arguments.timeout):
            state = await _outcome(file, before)
    except TimeoutError:
        raise Unavailable(f"the reload has not ended within {arguments.timeout}; see the log of the daemon") from None
    if state.refused is not None:
        reason = f"refused, generation {state.generation} stays in force: {state.refused}"
        if state.code == os.EX_CONFIG:
            raise ConfigError(reason)
        raise Unavailable(reason) if state.code == os.EX_TEMPFAIL else CommandError(reason)
    write([f"generation {state.generation} of the configuration is in force (process {state.pid})"])


async def _outcome(file: RunFile, before: RunState) -> RunState:
    """That of the first reload to begin, and with it to read the files, after `before`, or of one behind it."""
    while True:
        state = file.read()
        if state is None or state.pid != before.pid:
            raise CommandError("the daemon has ended meanwhile; see its log")
        if state.ended > before.begun:
            return state
        await asyncio.sleep(_LOOK)
