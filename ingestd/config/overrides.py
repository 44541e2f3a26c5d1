"""`--set a.b=c`: options of the file overridden on the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from ingestd.api.errors import ConfigError

__all__ = ["apply_overrides"]

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_ARGUMENT = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=(.*)", re.DOTALL)


def apply_overrides(tables: dict[str, Any], arguments: Iterable[str]) -> dict[str, str]:
    """Apply the arguments to the tables of a file, in order. Raises `ConfigError`.

    Returns each path that now comes from the command line, with the name in its argument. `--set sinks.a.type=jsonl`
    gives the path `sinks.a.type`, and also `sinks.a` if the file has no such section.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        path, value = _parse(argument)
        name = ".".join(path)
        table = tables
        for depth, part in enumerate(path[:-1], 1):
            if part not in table:
                given.setdefault(".".join(path[:depth]), name)
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                # The message omits the value, which may be a secret.
                raise ConfigError(f"--set {name}: {'.'.join(path[:depth])} is a value, not a section")
        table[path[-1]] = value
        given[name] = name
    return given


def _parse(argument: str) -> tuple[list[str], Any]:
    match = _ARGUMENT.fullmatch(argument)
    try:
        argument.encode()
        table: Any = tomllib.loads(f"{match[1]} = 0") if match else None
    except UnicodeEncodeError:
        raise ConfigError("--set: an argument is not UTF-8") from None
    except tomllib.TOMLDecodeError:
        table = None
    if match is None or table is None:
        # The text after = may be a secret.
        raise ConfigError(f"--set {argument.partition('=')[0]}: expected OPTION=VALUE, such as http.max_body=2MiB")
    path = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        path.append(name)
    return path, _read_value(match[2])


def _read_value(text: str) -> Any:
    """The TOML value of the text, or the text if it is not a TOML value."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tables["value"] if [*tables] == ["value"] else text
