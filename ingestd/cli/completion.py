"""`ingestd completion`: prints a shell completion script.

`shtab` makes the script from the parser, so it has the commands of the configured plugins. The script is static: the
TAB key starts no Python. `argcomplete` would run the whole command with its plugins at each TAB.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ingestd.api.output import write_data
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

__all__ = ["add_arguments", "print_completion"]

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser, command_line: argparse.ArgumentParser) -> None:
    """`command_line` is the parser of all commands. Commands may be added to it later."""
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=f"the shell: {', '.join(_SHELLS)}")
    parser.set_defaults(command_line=command_line)


async def print_completion(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    import shtab  # only this command needs it

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in _actions(arguments.command_line):
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # shtab reads this attribute
    write_data([shtab.complete(arguments.command_line, arguments.shell)])


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of the parser and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
