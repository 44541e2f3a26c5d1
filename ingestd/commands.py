"""The commands that are no plugin's: `serve`, `check`, `events export`, `plugins list`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from . import __version__, times
from .config import Config
from .errors import CommandError, IngestdError
from .hookspecs import Commands, Daemon
from .loader import Plugins
from .options import Duration
from .server import Server, make_sinks, open_backends
from .validation import Validator

__all__ = ["OfflineRun", "register"]

OfflineRun = Callable[[argparse.Namespace, Config, Plugins], Awaitable[None]]

_PAGE = 500


class _CommandLine(Commands, Protocol):
    def add_offline(self, group: str, name: str, run: OfflineRun, *, help: str) -> argparse.ArgumentParser: ...


def register(cli: _CommandLine) -> None:
    cli.add_offline("", "serve", serve, help="run the daemon")
    cli.add_offline("", "check", check, help="check configuration, schemas, plugins, store and sinks")
    export = cli.add("events", "export", export_events, help="print the journal's records as JSON lines, oldest first")
    export.add_argument("--type", help="only records of this type: event, identify, attribution …")
    export.add_argument("--since", metavar="TIME", type=since, help="an RFC 3339 time, or an age such as 2h")
    listing = cli.add_offline(
        "plugins", "list", list_plugins, help="show the plugins in force and where they come from"
    )
    listing.add_argument("--json", action="store_true", help="JSON lines")


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await Server(config, plugins).run()


def since(text: str) -> int:
    """Milliseconds of an RFC 3339 time or of an age counted back from now."""
    at = times.parse_time(text)
    if at is not None:
        return at
    try:
        return times.now() - Duration.parse(text).milliseconds
    except ValueError as error:
        raise argparse.ArgumentTypeError("expected an RFC 3339 time or an age such as 2h") from error


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


async def check(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """One page of what is in force; raises what would stop the start."""
    validator = Validator.load(config.schemas.directory)
    _print([
        f"ingestd        {__version__}, Python {platform.python_version()}",
        f"configuration  {config.source}",
        f"events         http://{config.http.listen.host}:{config.http.listen.port}",
        f"operators      http://{config.ops.listen.host}:{config.ops.listen.port}",
        f"schemas        {len(validator.keys)} event keys",
    ])  # fmt: skip
    _print(f"plugin         {p.name} ({p.distribution} {p.version}, {p.source})" for p in plugins.loaded)
    sinks = make_sinks(config, plugins)
    async with open_backends(config, plugins) as backends:
        for name, fact in await backends.describe():
            _print([f"{name:<14} {fact}"])
        problem = backends.problem()
        if problem is not None:
            raise CommandError(f"store: {problem}")
    failed = []
    for consumer in sinks:
        try:
            await consumer.sink.check()
        except IngestdError as error:
            failed.append(f"sinks.{consumer.sink.name}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a sink raises is what there is to report
            failed.append(f"sinks.{consumer.sink.name}: {error!r}")
        else:
            _print([f"sink           {consumer.sink.name} ok"])
    if failed:
        raise CommandError("; ".join(failed))
    _print(["all is well"])


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
