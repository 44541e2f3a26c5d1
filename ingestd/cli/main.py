"""The command line. Plugins can add commands. Each command takes `--config FILE` and `--set OPTION=VALUE`.

| exit code | meaning |
|---|---|
| 0 | success, also if the reader of the output ends early |
| 1 | the command has failed |
| 2 | wrong usage |
| 75 | a failure that may pass: try again later |
| 78 | a faulty configuration |

The last line on standard error has the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestd.api.errors import CommandError, ConfigError
from ingestd.config import Config, find_config, load_config, parse_config
from ingestd.daemon.exit_codes import exit_code
from ingestd.hooks.caller import register_all
from ingestd.hooks.loader import Plugins, load_plugins
from ingestd.observability.logs import set_up_logs
from ingestd.storage.backends import Backends, open_backends
from ingestd.support.names import nearest
from ingestd.support.streams import discard_unwritable, reader_is_gone
from ingestd.support.unusable_ids import UnusableIds

from .command_line import DEFAULTS, Command, CommandLine, add_configuration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["CommandDaemon", "command_line", "defaults", "main"]

log = logging.getLogger("ingestd")

_LEAVE = 2.0  # seconds after the end of `serve` until the process is forced to exit; all durable data is stored by then


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shared", action="store_true", help="refuse a store that only one daemon can use, such as SQLite"
    )


_SERVE = Command(
    "serve",
    "ingestd.daemon.server:serve",
    "run the daemon",
    ["ingestd serve --config /etc/ingestd/ingestd.toml"],
    _add_shared,
)


def main() -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:]
    set_up_logs(serving="serve" in argv)
    with asyncio.Runner() as runner:
        code = _run(argv, runner)
        if "serve" in argv:
            # A thread of a plugin may never end. The reason is told by now, which takes seconds on a busy machine.
            leaving = threading.Timer(_LEAVE, os._exit, [code])
            leaving.daemon = True
            leaving.start()
    return code


def _run(argv: list[str], runner: asyncio.Runner) -> int:
    try:
        return _main(argv, runner)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_is_gone():  # the reader, such as head, has ended
            return 0
        code = exit_code(error)
        if code is None:
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        cause = error.__cause__ if code == 1 else None  # of a task that has died, only the cause has a useful traceback
        log.error("%s", error, exc_info=cause)  # noqa: TRY400
        return code
    except KeyboardInterrupt:
        return 130
    finally:
        discard_unwritable()


def _main(argv: list[str], runner: asyncio.Runner) -> int:
    config, plugins, cli = _load(argv)
    try:
        arguments = cli.parser.parse_args(argv)
    finally:
        sys.stdout.flush()  # the reader of a help text may be gone too
    if arguments.needs_store:
        runner.run(_run_with_store(arguments, config, plugins))
    else:
        try:
            runner.run(arguments.run(arguments, config, plugins))
        except ConfigError as error:  # of a sink, or of what the daemon opens
            if argv[0] == "serve":
                _tell_other_faults(arguments.config, arguments.set, error, plugins)
            raise
    sys.stdout.flush()
    return 0


def command_line(plugins: Plugins, argv: Sequence[str] | None = None) -> CommandLine:
    """All commands: `serve`, and those of extensions and plugins. With `argv`, it parses only this command line."""
    cli = CommandLine(argv)
    cli.add_all([_SERVE])
    register_all(plugins.manager, "register_commands", cli)
    return cli


def _load(argv: list[str]) -> tuple[Config, Plugins, CommandLine]:
    """Load configuration and plugins before the parser is complete, since plugins add commands."""
    early = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    add_configuration(early)
    try:
        known, _ = early.parse_known_args(argv)
    except argparse.ArgumentError:  # the complete parser will report it
        known = argparse.Namespace(config=None, set=[])
    try:
        config = load_config(find_config(known.config), known.set)
        plugins = load_plugins(config)
        return config, plugins, command_line(plugins, argv)
    except ConfigError as error:
        config, plugins = defaults()
        cli = command_line(plugins, argv)
        # A help text needs no configuration, but has only the built-in commands.
        if argv and not {"-h", "--help", "--version"} & {*argv}:
            without = cli.running_without.get(argv[0])
            if without != "any" and (without != "found" or known.config is not None):
                _check_command(cli, argv, known.config)
                if argv[0] == "serve":
                    _tell_other_faults(known.config, known.set, error, plugins)
                raise
    return config, plugins, cli


def _tell_other_faults(config: str | None, overrides: list[str], first: ConfigError, plugins: Plugins) -> None:
    """Log all faults of the configuration but the first, whose line ends the log."""
    with suppress(ConfigError):  # there is no file
        for faults in plugins.manager.hook.find_faults(file=find_config(config), overrides=overrides):
            for fault in faults:
                if fault != str(first):
                    log.error("%s", fault)


def _check_command(cli: CommandLine, argv: list[str], config: str | None) -> None:
    """Exit with 2 if the command line is wrong with any configuration.

    A faulty configuration may name the plugin that adds an unknown command. Then the fault of the configuration is more
    useful, unless the command resembles a known one.
    """
    is_known = argv[0] in cli.names or bool(nearest(argv[0], cli.names))
    try:
        has_configuration = find_config(config).exists()
    except ConfigError:
        has_configuration = False
    if is_known or not has_configuration:
        cli.parser.parse_args(argv)


def defaults() -> tuple[Config, Plugins]:
    """A configuration without a file, and its plugins."""
    config = parse_config({}, source=DEFAULTS, base=Path.cwd())
    return config, load_plugins(config)


async def _run_with_store(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async with open_backends(config, plugins) as backends:
        await arguments.run(arguments, CommandDaemon(backends, plugins, config))


class CommandDaemon:
    """The `Daemon` that plugins get from a command."""

    def __init__(self, backends: Backends, plugins: Plugins, config: Config) -> None:
        self._plugins = plugins
        self.store = backends.store
        self.partitions = backends.partitions
        self.of_tenant = backends.of_tenant
        self.all_of_tenant = backends.all_of_tenant
        self.unusable_ids = UnusableIds(config.ids.unusable)
        self.config_path = os.path.abspath(config.source)

    @cached_property
    def registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry  # here: few commands need it

        return CollectorRegistry()

    def plugin(self, name: str) -> object | None:
        return self._plugins.manager.get_plugin(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        work.close()
        raise CommandError(f"{name}: a command cannot run background tasks")
