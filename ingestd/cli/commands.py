"""The table of the commands that every installation needs. Extensions and plugins add theirs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from . import completion, reload, systemd_units
from .command_line import JSON, Command, CommandLine

__all__ = ["ANY_CONFIGURATION", "WITHOUT_CONFIGURATION", "register"]

WITHOUT_CONFIGURATION = {"install-units", "reload"}
"""Commands that run without a configuration, or without its credentials: systemd passes none to ExecReload=."""

ANY_CONFIGURATION = {"completion"}
"""Commands that use the configuration only for its plugins' commands. They also run if it is faulty or missing."""


def register(cli: CommandLine) -> None:
    cli.add_all(_commands(cli))


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
        "install-units",
        "ingestd.cli.systemd_units:install_units",
        "install the systemd units",
        ["ingestd install-units --dry-run", "ingestd install-units --prefix /opt/ingestd --outgoing"],
        systemd_units.add_arguments,
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
