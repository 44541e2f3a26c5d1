"""`ingestd serve`: runs the daemon until a signal ends it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingestd.config import Config, load_config
from ingestd.daemon.server import Server
from ingestd.hooks.loader import Plugins
from ingestd.observability.logs import configure_logs

__all__ = ["serve"]


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    configure_logs(config.logs)

    def read() -> Config:
        return load_config(Path(config.source), arguments.set)

    await Server(config, plugins, read=read, shared=arguments.shared).run()
