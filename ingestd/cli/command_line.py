"""The parser of the command line: all commands, with an example of each in its help."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from ingestd import __version__
from ingestd.api.hookspecs import Run
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.support.names import hint

__all__ = ["DEFAULTS", "JSON", "JSON_LINES", "Command", "CommandLine", "add_configuration"]

JSON, JSON_LINES = "print one JSON object", "print one JSON object a line"
"""The help of `--json`."""
DEFAULTS = "<defaults>"
"""The `source` of the configuration with which `Command.runs_without` lets a command run."""

_EXAMPLES = (
    "ingestd check",
    "ingestd serve --config /etc/ingestd/ingestd.toml",
    "ingestd keys create --kind public --tenant shop",
    "ingestd events export --type event --since 2h",
)


class Command(NamedTuple):
    """A command of ingestd or of an extension. It runs with configuration and plugins, and opens what it needs."""

    words: str
    """Its name, such as "store copy"."""
    run: str
    """Its function, as "module:function". The module is imported when the command runs: importing the daemon takes
    longer than most commands run.
    """
    help: str
    examples: Sequence[str]
    """Whole command lines."""
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    json: str = ""
    """The help of its option `--json`. Without a text it has none."""
    runs_without: Literal["", "found", "any"] = ""
    """Whether it also runs with the defaults, if no valid configuration is found, or even if `--config` names none."""


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest choice for a wrong one. All commands have parsers of this class."""

    def __init__(self, **options: Any) -> None:
        # Examples keep their lines. `main` finds `--config` with another parser, which knows no abbreviations of it.
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def add_examples(self, examples: Sequence[str]) -> None:
        if examples:
            above = self.epilog or "examples:"
            self.epilog = "\n".join([above, *(f"  {example}" for example in examples)])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        kind = "command" if isinstance(action.choices, dict) else "choice"  # argparse keeps commands in a dict
        raise argparse.ArgumentError(action, f"there is no {kind} {str(value)!r}; {hint(str(value), known)}")


class CommandLine:
    """The parser of all commands. Plugins get it as `ingestd.api.hookspecs.Commands`."""

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        """With `argv`, only a command whose words are in it gets its arguments. To add all takes as long as to run."""
        self._argv = argv
        self.parser = _Parser(prog="ingestd", description="Customer-event ingestion for e-commerce.")
        self.parser.add_argument("--version", action="version", version=f"ingestd {__version__}")
        self.parser.add_examples(_EXAMPLES)
        self._groups = {"": self.parser}
        self._commands: dict[str, Any] = {"": _add_commands(self.parser)}
        self.running_without: dict[str, str] = {}
        """`Command.runs_without` by name."""
        self._headings: dict[str, argparse.Action] = {}
        """The line of each group in the help of the level above it."""

    @property
    def names(self) -> Collection[str]:
        """The first words of all commands."""
        names: Collection[str] = self._commands[""].choices
        return names

    def add(
        self, group: str, name: str, run: Run, *, help: str, examples: Sequence[str] = (), json: str = ""
    ) -> argparse.ArgumentParser:
        """Add `ingestd GROUP NAME`, which runs with an open store."""
        return self._add(group, name, help, examples, json, run=run, needs_store=True)

    def add_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            group, _, name = command.words.rpartition(" ")
            run = partial(_run, command.run)
            parser = self._add(group, name, command.help, command.examples, command.json, run=run, needs_store=False)
            self.running_without[command.words] = command.runs_without
            if command.add_arguments is not None and self._may_run(command.words):
                command.add_arguments(parser)

    def describe(self, group: str, help: str) -> None:
        self._add_group(group)
        self._groups[group].description = help
        self._show_group(group)

    def _add(
        self, group: str, name: str, help: str, examples: Sequence[str], json: str, **defaults: Any
    ) -> argparse.ArgumentParser:
        self._add_group(group)
        if group:
            self._groups[group].add_examples(examples[:1])
        command = self._add_parser(group, name, help, description=help)
        command.add_examples(examples)
        if self._may_run(f"{group} {name}"):
            add_configuration(command)
            if json:
                command.add_argument("--json", action="store_true", help=json)
        command.set_defaults(**defaults)
        return command

    def _may_run(self, words: str) -> bool:
        return self._argv is None or {*words.split()} <= {*self._argv}

    def _add_group(self, group: str) -> None:
        if group in self._groups:
            return
        parent, _, name = group.rpartition(" ")
        self._add_group(parent)
        self._groups[group] = self._add_parser(parent, name, "")
        self._commands[group] = _add_commands(self._groups[group])
        self._headings[group] = self._commands[parent]._choices_actions[-1]

    def _add_parser(self, group: str, name: str, help: str, **options: Any) -> _Parser:
        parser: _Parser = self._commands[group].add_parser(name, help=help, **options)
        if group:
            self._show_group(group)
        return parser

    def _show_group(self, group: str) -> None:
        """Show the group in the help of the level above it."""
        texts = [self._groups[group].description, ", ".join(self._commands[group].choices)]
        self._headings[group].help = ": ".join(text for text in texts if text)


def _run(target: str, arguments: argparse.Namespace, config: Config, plugins: Plugins) -> Any:
    return pkgutil.resolve_name(target)(arguments, config, plugins)


def add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the configuration; default: $INGESTD_CONFIG, ./ingestd.toml, /etc/ingestd/ingestd.toml",
    )
    parser.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="use this value instead of the file's for one option, such as http.max_body=2MiB; may be given again",
    )


def _add_commands(parser: _Parser) -> Any:
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
