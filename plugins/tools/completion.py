"""`ingestd completion`: prints a shell completion script.

`shtab` makes the script from the parser, so it has the commands of the configured plugins. The script is static: the
TAB key starts no Python. `argcomplete` would run the whole command with its plugins at each TAB.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ingestd.api.output import write_data
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

__all__ = ["add_arguments", "print_completion"]

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=f"the shell: {', '.join(_SHELLS)}")


async def print_completion(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    import shtab  # only this command needs it

    from ingestd.cli.main import command_line

    parser = command_line(plugins).parser
    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in _actions(parser):
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # shtab reads this attribute
    script = shtab.complete(parser, arguments.shell)
    write_data([_without_deeper_commands(script, parser) if arguments.shell == "zsh" else script])


def _without_deeper_commands(script: str, parser: argparse.ArgumentParser) -> str:
    """Without the commands that shtab 1.13 lists in zsh for a group although they belong to a group below it."""
    for action in parser._actions:
        for group in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            script = _without_deeper_commands(script, group)
        if isinstance(action, argparse._SubParsersAction):
            head, begin, rest = script.partition(f"_shtab_{re.sub('[ -]', '_', parser.prog)}_commands() {{\n")
            listed, end, tail = rest.partition("\n  )\n")
            lines = [
                line
                for line in listed.split("\n")
                if line.strip().partition(":")[0] in {"local _commands=(", *action.choices}
            ]
            script = "".join([head, begin, "\n".join(lines), end, tail])
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of the parser and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
