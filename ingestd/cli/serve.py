"""`ingestd serve`: runs the daemon until a signal ends it."""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

from ingestd.config import Config, load_config
from ingestd.daemon.exit_codes import exit_code
from ingestd.daemon.server import Server
from ingestd.hooks.loader import Plugins
from ingestd.observability.logs import configure_logs

__all__ = ["serve"]

_LEAVE = 2.0  # seconds after a shutdown until the process is forced to exit


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    configure_logs(config.logs)

    def read() -> Config:
        return load_config(Path(config.source), arguments.set)

    try:
        await Server(config, plugins, read=read, shared=arguments.shared).run()
    except BaseException as error:
        _leave_soon(exit_code(error) or 1)
        raise
    _leave_soon(0)


def _leave_soon(code: int) -> None:
    """End the process even if a sink's task or thread does not end. All durable data is stored and closed by now."""
    leaving = threading.Timer(_LEAVE, os._exit, [code])
    leaving.daemon = True
    leaving.start()
