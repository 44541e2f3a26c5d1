"""The table of the commands that every installation needs. Extensions and plugins add theirs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from . import completion, reload, systemd_units, upgrade
from .command_line import JSON, JSON_LINES, Command, CommandLine
from .sinks.table import sink_commands

__all__ = ["ANY_CONFIGURATION", "WITHOUT_CONFIGURATION", "register"]

WITHOUT_CONFIGURATION = {"install-units", "reload"}
"""Commands that run without a configuration, or without its credentials: systemd passes none to ExecReload=."""

ANY_CONFIGURATION = {"completion"}
"""Commands that use the configuration only for its plugins' commands. They also run if it is faulty or missing."""

_GROUPS = {
    "config": "show the configuration",
    "store": "copy, check and mend the store",
    "partitions": "show and move what the partitions of the store have",
    "sinks": "show and control the delivery to sinks",
    "sinks dead-letters": "show, repeat or delete the records that a sink has refused",
    "plugins": "show the plugins",
}


def register(cli: CommandLine) -> None:
    cli.add_all(_commands(cli))
    for group, sentence in _GROUPS.items():
        cli.describe(group, sentence)


def _commands(cli: CommandLine) -> Iterator[Command]:
    yield Command(
        "serve",
        "ingestd.cli.serve:serve",
        "run the daemon",
        ["ingestd serve --config /etc/ingestd/ingestd.toml"],
        _add_shared,
    )
    yield Command(
        "reload",
        "ingestd.cli.reload:reload",
        "have running daemons read the configuration again, and print the outcome",
        ["ingestd reload", "ingestd reload --config /etc/ingestd/ingestd.toml --timeout 10s"],
        reload.add_arguments,
    )
    yield Command(
        "check",
        "ingestd.cli.check.command:check",
        "check configuration, schemas, plugins, store and sinks",
        ["ingestd check", "ingestd check --config new.toml --json"],
        json=JSON,
    )
    yield Command(
        "config show",
        "ingestd.cli.config:show",
        "print the configuration in force, secrets hidden",
        ["ingestd config show", "ingestd config show --set http.max_body=2MiB"],
        json=JSON,
    )
    yield Command(
        "store acknowledge-loss",
        "ingestd.cli.losses:acknowledge",
        "go on without the data that the store has lost",
        ["ingestd store acknowledge-loss"],
    )
    yield Command(
        "store upgrade",
        "ingestd.cli.upgrade:upgrade",
        "upgrade the store of an earlier version, without a running daemon, and keep a copy",
        ["ingestd store upgrade", "ingestd store upgrade --no-copy"],
        upgrade.add_arguments,
    )
    yield Command(
        "partitions show",
        "ingestd.cli.partitions:show",
        "show the partitions of the store, and which tenants load them",
        ["ingestd partitions show", "ingestd partitions show shop --json"],
        _add_tenants,
        json=JSON_LINES,
    )
    yield from sink_commands()
    yield Command(
        "install-units",
        "ingestd.cli.systemd_units:install_units",
        "install the systemd units",
        ["ingestd install-units --dry-run", "ingestd install-units --prefix /opt/ingestd --outgoing"],
        systemd_units.add_arguments,
    )
    yield Command(
        "plugins list",
        "ingestd.cli.config:list_plugins",
        "show the plugins in force and their origin",
        ["ingestd plugins list"],
        json=JSON_LINES,
    )
    yield Command(
        "completion",
        "ingestd.cli.completion:print_completion",
        "print a shell completion script",
        ["ingestd completion bash", "ingestd completion fish --config /etc/ingestd/ingestd.toml"],
        partial(completion.add_arguments, command_line=cli.parser),
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shared", action="store_true", help="refuse a store that only one daemon can use, such as SQLite"
    )


def _add_tenants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenants", metavar="TENANT", nargs="*", help="only these tenants, and their partitions")
