"""Writes tests/data/surface.txt: all that users, operators and plugin authors can name; `make surface` runs it.

A line is an option with its default, a hook, a metric, an argument of a command, an operation or a problem of the API,
a name of `ingestd.api`, or a file that an installation brings. A test compares the file with the code, so whoever
changes the surface sees the change, and writes it into the changelog.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec

import ingestd.api
from ingestd.api import errors, hookspecs
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.api.options import Options
from ingestd.cli.main import command_line, defaults
from ingestd.config import SECTIONS
from ingestd.delivery import SinkOptions

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "data" / "surface.txt"

_OTHER_FILES = {".py", ".pyc"}


def lines() -> list[str]:
    """The lines of the surface, sorted."""
    return sorted(
        {*_options(), *_hooks(), *_metrics(), *_commands(), *_operations(), *_problems(), *_names(), *_files()}
    )


def _options() -> Iterator[str]:
    sections: dict[str, type[Options]] = {**SECTIONS, "sinks.NAME": SinkOptions}
    for point in _built_in():
        target = point.load()
        if ".sinks." in point.value:
            made: dict[str, Any] = {}
            target.register_sinks(made.__setitem__)
            sections |= {f"sinks.NAME ({kind})": sink.Options for kind, sink in made.items()}
        elif hasattr(target, "Options"):
            sections[f"plugins.{point.name}"] = target.Options
        else:
            yield f"plugin {point.name}"
    for section, options in sections.items():
        for field in msgspec.structs.fields(options):
            yield f"option {section} {field.encode_name} = {_default(field)}"


def _built_in() -> list[Any]:
    points = entry_points(group=HOOK_NAMESPACE)
    return [point for point in points if point.dist is not None and point.dist.name == "ingestd"]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return repr(field.default_factory())
    return "(required)" if field.default is msgspec.NODEFAULT else repr(field.default)


def _hooks() -> Iterator[str]:
    for name, function in vars(hookspecs).items():
        if hasattr(function, f"{HOOK_NAMESPACE}_spec"):
            yield f"hook {name}{inspect.signature(function)}".replace("'", "")


def _metrics() -> Iterator[str]:
    """Another test compares the document with a running daemon."""
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(ingestd_\w+)` \| (\w+) \| (.*?) ?\|", line):
            yield f"metric {match[1]} {match[2]} {match[3]}".rstrip()


def _commands() -> Iterator[str]:
    yield from _of_parser(command_line(defaults()[1]).parser)


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in {id(each): each for each in action.choices.values()}.values():
                yield from _of_parser(each)
        elif not isinstance(action, argparse._HelpAction) and action.dest not in {"config", "set"}:  # each has them
            named = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            form = f" {action.metavar}" if action.option_strings and action.metavar else ""
            yield f"command {parser.prog} {named}{form}: {' '.join((action.help or '').split())}"


def _operations() -> Iterator[str]:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "responses" in operation:
                yield f"operation {method.upper()} {path} {' '.join(sorted(operation['responses']))}"


def _problems() -> Iterator[str]:
    """Plugins raise some of the errors with other codes, which docs/api.md lists."""
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, errors.Refused) and hasattr(error, "status"):
            yield f"problem {error.status} {error.code} ({name})"
    for line in (ROOT / "docs" / "api.md").read_text().splitlines():
        if match := re.match(r"\| (\d{3}) \| (.*?) \|", line):
            yield from (f"problem {match[1]} {code}" for code in re.findall(r"`(\w+)`", match[2]))


def _names() -> Iterator[str]:
    for module in pkgutil.walk_packages(ingestd.api.__path__, "ingestd.api."):
        for name in getattr(importlib.import_module(module.name), "__all__", ()):
            yield f"api {module.name} {name}"


def _files() -> Iterator[str]:
    for package in ("clients.browser", "conf", "schemas", "systemd", "plugins"):
        yield from _below(files(f"ingestd.{package}"), package.replace(".", "/"))


def _below(folder: Traversable, path: str) -> Iterator[str]:
    for each in folder.iterdir():
        if each.is_dir() and each.name not in {"__pycache__", "src", "node_modules"}:
            yield from _below(each, f"{path}/{each.name}")
        elif each.is_file() and Path(each.name).suffix not in _OTHER_FILES:
            yield f"file {path}/{each.name}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
