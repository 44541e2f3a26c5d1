"""The built-in commands: `serve`, `check`, `config show`, `events export`, `sinks …`, `plugins list` …"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.missing_partitions import MissingPartitions
from ingestd.api.output import write
from ingestd.config import Config, load_config
from ingestd.hooks.loader import Plugins
from ingestd.observability.logs import configure_logs

from . import (
    completion as completion_command,
)
from . import (
    config as config_commands,
)
from . import (
    openapi as openapi_command,
)
from . import (
    plugins as plugin_commands,
)
from . import (
    reload as reload_command,
)
from . import (
    sinks as sink_commands,
)
from . import (
    systemd_units as unit_commands,
)
from .export import command as export_command
from .forget import command as forget
from .importing.arguments import add_arguments as add_import_arguments
from .moving import arguments as moving

__all__ = ["ANY_CONFIGURATION", "WITHOUT_CONFIGURATION", "OfflineRun", "register"]

WITHOUT_CONFIGURATION = {"install-units", "reload"}
"""Commands that run without a configuration, or without its credentials: systemd passes none to ExecReload=."""

ANY_CONFIGURATION = {"completion"}
"""Commands that use the configuration only for its plugins' commands. They also run if it is faulty or missing."""

OfflineRun = Callable[[argparse.Namespace, Config, Plugins], Awaitable[None]]

_LEAVE = 2.0  # seconds after a shutdown until the process is forced to exit


class _CommandLine(Commands, Protocol):
    @property
    def parser(self) -> argparse.ArgumentParser: ...

    def add_offline(
        self, group: str, name: str, run: OfflineRun, *, help: str, examples: Sequence[str]
    ) -> argparse.ArgumentParser: ...


def register(cli: _CommandLine) -> None:
    parser = cli.add_offline(
        "", "serve", serve, help="run the daemon", examples=["ingestd serve --config /etc/ingestd/ingestd.toml"]
    )
    parser.add_argument(
        "--shared", action="store_true", help="refuse a store that only one daemon can use, such as SQLite"
    )
    parser = cli.add_offline(
        "",
        "reload",
        reload_command.reload,
        help="have running daemons read the configuration again, and print the outcome",
        examples=["ingestd reload", "ingestd reload --config /etc/ingestd/ingestd.toml --timeout 10s"],
    )
    reload_command.add_arguments(parser)
    parser = cli.add_offline(
        "",
        "check",
        check,
        help="check configuration, schemas, plugins, store and sinks",
        examples=["ingestd check", "ingestd check --config new.toml --json"],
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser = cli.add_offline(
        "config",
        "show",
        config_commands.show,
        help="print the configuration in force, secrets hidden",
        examples=["ingestd config show", "ingestd config show --set http.max_body=2MiB"],
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser = cli.add_offline(
        "",
        "openapi",
        openapi_command.print_openapi,
        help="print the API for callers as an OpenAPI document",
        examples=["ingestd openapi", "ingestd openapi --server https://events.shop.example"],
    )
    openapi_command.add_arguments(parser)
    parser = cli.add_offline(
        "events",
        "export",
        export_command.export_events,
        help="print the records of the journal as JSON lines, oldest first",
        examples=[
            'ingestd events export --key "Order Completed" --since 1h --follow',
            "ingestd events export --user u-17 --tenant shop",
        ],
    )
    export_command.add_arguments(parser)
    parser = cli.add_offline(
        "events",
        "import",
        import_events,
        help="store the records and messages of files, each once",
        examples=[
            "ingestd events import records.jsonl.gz --dry-run",
            "ingestd events import archive/ --format segment --tenant shop --state --errors faults.jsonl",
        ],
    )
    add_import_arguments(parser)
    cli.add(
        "store",
        "acknowledge-loss",
        acknowledge_loss,
        help="go on without the data that the store has lost",
        examples=["ingestd store acknowledge-loss"],
    )
    parser = cli.add_offline(
        "store",
        "copy",
        copy_store,
        help="copy all data of a store to an empty one, and compare both",
        examples=[
            "ingestd store copy --from sqlite:///var/lib/ingestd/ingestd.db --to redis://10.0.0.1:6379/0 --prepare",
            "ingestd store copy --from sqlite:///var/lib/ingestd/ingestd.db --to redis://10.0.0.1:6379/0",
        ],
    )
    moving.add_arguments(parser)
    parser = cli.add_offline(
        "store",
        "compare",
        compare_stores,
        help="compare all data of two stores, and name what differs",
        examples=["ingestd store compare --from sqlite:///var/lib/ingestd/ingestd.db --to redis://10.0.0.1:6379/0"],
    )
    moving.add_compare_arguments(parser)
    parser = cli.add_offline(
        "store",
        "backup",
        back_up_store,
        help="write a checked copy of the SQLite store to a new file, also beside a running daemon",
        examples=["ingestd store backup /var/lib/ingestd/backup/monday.db"],
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write; it must not exist")
    parser = cli.add_offline(
        "store",
        "restore",
        restore_store,
        help="replace the SQLite store by a backup, and keep the former file",
        examples=["ingestd store restore /var/lib/ingestd/backup/monday.db"],
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the backup")
    parser = cli.add_offline(
        "",
        "forget",
        forget.forget,
        help="remove a person from state and journal, and tell the sinks",
        examples=["ingestd forget --user u-17 --dry-run", "ingestd forget --anonymous visitor-1 --tenant shop"],
    )
    forget.add_arguments(parser)
    parser = cli.add_offline(
        "partitions",
        "show",
        show_partitions,
        help="show the partitions of the store, and which tenants load them",
        examples=["ingestd partitions show", "ingestd partitions show shop --json"],
    )
    parser.add_argument("tenants", metavar="TENANT", nargs="*", help="only these tenants, and their partitions")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    sink_commands.register(cli)
    parser = cli.add_offline(
        "",
        "install-units",
        unit_commands.install_units,
        help="install the systemd units",
        examples=["ingestd install-units --dry-run", "ingestd install-units --prefix /opt/ingestd --outgoing"],
    )
    unit_commands.add_arguments(parser)
    parser = cli.add_offline(
        "plugins",
        "list",
        plugin_commands.list_plugins,
        help="show the plugins in force and their origin",
        examples=["ingestd plugins list"],
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser = cli.add_offline(
        "",
        "completion",
        completion_command.print_completion,
        help="print a shell completion script",
        examples=["ingestd completion bash", "ingestd completion fish --config /etc/ingestd/ingestd.toml"],
    )
    completion_command.add_arguments(parser, cli.parser)


# Each command imports its own modules when it runs: importing the daemon takes longer than most commands run.


async def serve(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from ingestd.daemon.server import Server

    configure_logs(config.logs)

    def read() -> Config:
        return load_config(Path(config.source), arguments.set)

    try:
        await Server(config, plugins, read=read, shared=arguments.shared).run()
    except BaseException as error:
        _leave_soon(_exit_code(error))
        raise
    _leave_soon(0)


def _leave_soon(code: int) -> None:
    """End the process even if a sink's task or thread does not end. All durable data is stored and closed by now."""
    leaving = threading.Timer(_LEAVE, os._exit, [code])
    leaving.daemon = True
    leaving.start()


def _exit_code(error: BaseException) -> int:
    """The exit code of an error, as in `main`."""
    if isinstance(error, ConfigError):
        return os.EX_CONFIG
    return os.EX_TEMPFAIL if isinstance(error, Unavailable | OSError) else 1


async def check(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .check.command import check as check_all

    await check_all(arguments, config, plugins)


async def import_events(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .importing.command import import_events as import_all

    await import_all(arguments, config, plugins)


async def copy_store(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .moving.command import copy

    await copy(arguments, config, plugins)


async def compare_stores(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .moving.command import compare

    await compare(arguments, config, plugins)


async def back_up_store(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .backups import back_up

    await back_up(arguments, config, plugins)


async def restore_store(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .backups import restore

    await restore(arguments, config, plugins)


async def show_partitions(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from .partitions import show

    await show(arguments, config, plugins)


async def acknowledge_loss(arguments: argparse.Namespace, daemon: Daemon) -> None:
    missing, is_any = MissingPartitions(daemon.partitions), False
    for partition in daemon.partitions:
        with missing.tolerating(partition):
            loss = partition.store.loss
            if await partition.store.clear_loss():
                is_any = True
                write([f"acknowledged: {f'partition {partition.name}: ' if partition.name else ''}{loss}"])
    if not is_any:
        write(["there is no loss of data to acknowledge"])
    missing.check("a loss there is not acknowledged")
