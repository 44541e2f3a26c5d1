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
    """Change the tables of a file as the arguments say, in their order.

    Returns the paths that now come from the command line, with the names the arguments give them:
    `--set sinks.a.type=jsonl` may bring `sinks.a.type`, or all of `sinks.a`. Raises `ConfigError`.
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
                # Its value is not shown: it may be a secret.
                raise ConfigError(f"--set {name}: {'.'.join(path[:depth])} is set to a value and is no section")
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
        # What stands behind = may be a secret.
        raise ConfigError(f"--set {argument.partition('=')[0]}: expected OPTION=VALUE, such as http.max_body=2MiB")
    path = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        path.append(name)
    return path, _read_value(match[2])


def _read_value(text: str) -> Any:
    """The TOML value that the text is, or else the text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tables["value"] if [*tables] == ["value"] else text
