"""The help of every command: each argument is explained, and each example is a command line that works."""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
import shlex
from collections.abc import Iterator
from functools import partial

import pytest

from ingestd.cli.main import command_line, defaults


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and the parsers of all its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


CLI = command_line(defaults()[1])
PARSERS = {parser.prog: parser for parser in parsers(CLI.parser)}
COMMANDS = {name: parser for name, parser in PARSERS.items() if parser.get_default("run") is not None}


def examples(parser: argparse.ArgumentParser) -> list[str]:
    above, *lines = parser.format_help().partition("examples:\n")[1:][-1].splitlines()
    assert all(line.startswith("  ") for line in [above, *lines])
    return [line.strip() for line in [above, *lines]]


@pytest.mark.parametrize("name", PARSERS)
def test_the_examples_in_the_help_parse(name: str) -> None:
    shown = examples(PARSERS[name])
    assert shown
    for line in shown:
        program, *arguments = shlex.split(line)
        assert program == "ingestd"
        parsed = CLI.parser.parse_args(arguments)
        assert line.startswith(name)
        if name in COMMANDS:
            assert parsed.run is COMMANDS[name].get_default("run")


def test_the_parser_of_one_command_line_has_all_that_this_command_takes() -> None:
    _, plugins = defaults()
    for name, parser in PARSERS.items():
        _, *words = name.split()
        alone = {each.prog: each for each in parsers(command_line(plugins, [*words, "--help"]).parser)}
        assert alone.keys() == PARSERS.keys()
        assert alone[name].format_help() == parser.format_help()


def test_each_function_that_is_imported_later_exists() -> None:
    later = [
        run.args[0]
        for parser in COMMANDS.values()
        if isinstance(run := parser.get_default("run"), partial) and run.args
    ]
    assert len(later) > 20
    assert all(inspect.iscoroutinefunction(pkgutil.resolve_name(target)) for target in later)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_all_its_arguments_are_explained(name: str) -> None:
    parser = COMMANDS[name]
    assert parser.description
    assert [action.dest for action in parser._actions if not action.help] == []
    metavars = [action.metavar for action in parser._actions if action.nargs != 0 and not action.choices]
    assert all(isinstance(metavar, str) and metavar.upper() == metavar for metavar in metavars), metavars


@pytest.mark.parametrize("name", sorted({*PARSERS} - {*COMMANDS, "ingestd"}))
def test_the_help_says_what_a_group_is_for(name: str) -> None:
    above, _, word = name.rpartition(" ")
    sentence = PARSERS[name].description
    assert sentence
    assert re.search(rf"\b{word}\s+{re.escape(sentence)}: ", " ".join(PARSERS[above].format_help().split()))


def test_a_group_shows_an_example_of_each_of_its_commands() -> None:
    groups = {name: parser for name, parser in PARSERS.items() if name not in {*COMMANDS, "ingestd"}}
    assert "ingestd sinks dead-letters" in groups
    for name, group in groups.items():
        below = [each for each in COMMANDS if each.rpartition(" ")[0] == name]
        assert len(examples(group)) == len(below)
