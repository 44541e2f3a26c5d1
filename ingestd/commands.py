"""The commands that are no plugin's: `serve`, `check`, `config show`, `events export`, `plugins list`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from . import config_commands
from .checking import command as check
from .config import Config
from .forgetting import command as forget
from .hookspecs import Commands, Daemon
from .loader import Plugins
from .logs import configure_logs
from .options import since
from .server import Server

__all__ = ["OfflineRun", "register"]

OfflineRun = Callable[[argparse.Namespace, Config, Plugins], Awaitable[None]]

_PAGE = 500


class _CommandLine(Commands, Protocol):
    def add_offline(self, group: str, name: str, run: OfflineRun, *, help: str) -> argparse.ArgumentParser: ...


def register(cli: _CommandLine) -> None:
    cli.add_offline("", "serve", serve, help="run the daemon")
    checking = cli.add_offline("", "check", check.check, help="check configuration, schemas, plugins, store and sinks")
    checking.add_argument("--json", action="store_true", help="one JSON object")
    configuration = cli.add_offline(
        "config", "show", config_commands.show, help="print the configuration in force, secrets hidden"
    )
    configuration.add_argument("--json", action="store_true", help="one JSON object")
    export = cli.add("events", "export", export_events, help="print the journal's records as JSON lines, oldest first")
    export.add_argument("--type", help="only records of this type: event, identify, attribution …")
    export.add_argument("--since", metavar="TIME", type=since, help="an RFC 3339 time, or an age such as 2h")
    forget.add_arguments(
        cli.add_offline("", "forget", forget.forget, help="remove a person from state and journal, and tell the sinks")
    )
    listing = cli.add_offline(
        "plugins", "list", list_plugins, help="show the plugins in force and where they come from"
    )
    listing.add_argument("--json", action="store_true", help="JSON lines")


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    configure_logs(config.logs)
    await Server(config, plugins).run()


async def export_events(arguments: argparse.Namespace, daemon: Daemon) -> None:
    """Records come in journal order, up to the newest one when the command began."""
    position, last = 0, await daemon.journal.last()
    out = sys.stdout.buffer
    while position < last:
        records = await daemon.journal.read(position, _PAGE)
        if not records:
            break
        for record in records:
            if record.position > last:
                break
            if arguments.type not in {None, record.type}:
                continue
            if arguments.since is None or record.at >= arguments.since:
                out.write(record.body + b"\n")
        position = records[-1].position
    out.flush()


async def list_plugins(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    rows = [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "source": plugin.source,
            "hooks": list(plugin.hooks),
        }
        for plugin in plugins.loaded
    ]
    if arguments.json:
        _print(json.dumps(row) for row in rows)
    else:
        _print(
            f"{r['name']:<12} {r['distribution']} {r['version']}  {r['source']}  {', '.join(r['hooks'])}" for r in rows
        )


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
