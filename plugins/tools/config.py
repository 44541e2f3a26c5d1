"""`ingestd config show` and `plugins list`: what a configuration means."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ingestd import __version__
from ingestd.api.options import shown
from ingestd.api.output import write_data, write_json, write_result
from ingestd.config import SECTIONS, Config
from ingestd.delivery import read_sink_options
from ingestd.hooks.loader import Plugin, Plugins
from ingestd.support.terminal import printable, table

__all__ = ["as_facts", "as_toml", "list_plugins", "show", "to_toml"]


async def show(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print every option with its value in force. Secrets are hidden."""
    if arguments.json:
        write_json(as_facts(config, plugins))
    else:  # data too: TOML is UTF-8 by its standard
        write_data([as_toml(config, plugins)], end="")


def as_toml(config: Config, plugins: Plugins) -> str:
    """The file, with the origin of each option that is not a default in a comment. Raises `ConfigError`."""
    lines = [
        f"# The configuration in force of ingestd {__version__}, from {to_toml(config.source)}; secrets are hidden.",
        "# A comment after an option names the origin of its value, if it is not a default.",
    ]
    for path, options in _sections(config, plugins).items():
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
        for option, value in options.items():
            origin = config.origin(*path, option)
            comment = "" if origin == "default" else f"  # {origin}"
            lines.append(f"# {_key(option)} =" if value is None else f"{_key(option)} = {to_toml(value)}{comment}")
    return "\n".join(lines) + "\n"


def as_facts(config: Config, plugins: Plugins) -> dict[str, Any]:
    """The configuration as one JSON object. An option without a value is null. Raises `ConfigError`."""
    nested: dict[str, Any] = {}
    for (name, *rest), options in _sections(config, plugins).items():
        group = nested.setdefault(name, {})
        for each in rest:
            group = group.setdefault(each, {})
        group.update(options)
    return nested


def _sections(config: Config, plugins: Plugins) -> dict[tuple[str, ...], dict[str, Any]]:
    """All options by the path of their section, with hidden secrets."""
    sections: dict[tuple[str, ...], dict[str, Any]] = {(name,): shown(getattr(config, name)) for name in SECTIONS}
    for plugin in plugins.loaded:
        if plugin.options is not None:
            sections["plugins", plugin.name] = shown(plugin.options)
    for name, of_sink in config.sink_tables.items():
        parts = read_sink_options(name, of_sink, plugins.sinks[of_sink["type"]], config)
        sections["sinks", name] = {option: value for part in parts for option, value in shown(part).items()}
    return sections


def to_toml(value: Any) -> str:
    """A value in TOML. Members of tables that are None are omitted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML string, except for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        members = [f"{_key(name)} = {to_toml(each)}" for name, each in value.items() if each is not None]
        return f"{{ {', '.join(members)} }}" if members else "{}"
    if isinstance(value, list):
        if any(isinstance(each, Mapping) for each in value):
            return "\n".join(["[", *(f"    {to_toml(each)}," for each in value), "]"])
        return f"[{', '.join(map(to_toml, value))}]"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)


_HEADS = ("NAME", "DISTRIBUTION", "SINKS", "STORES", "HOOKS", "FILE")


async def list_plugins(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    write_result(*map(_facts, plugins.loaded), lines=_page(plugins.loaded), as_json=arguments.json)


def _facts(plugin: Plugin) -> dict[str, object]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "source": plugin.source,
        "file": _file(plugin),
        "sinks": plugin.sinks,
        "stores": plugin.stores,
        "hooks": plugin.hooks,
    }


def _page(plugins: Iterable[Plugin]) -> Iterator[str]:
    rows = [
        (
            each.name,
            f"{each.distribution} {each.version}".rstrip(),
            ", ".join(each.sinks) or "-",
            ", ".join(each.stores) or "-",
            ", ".join(each.hooks),
            _file(each) or each.source,
        )
        for each in plugins
    ]
    return table([_HEADS, *(tuple(map(printable, row)) for row in rows)])


def _file(plugin: Plugin) -> str | None:
    """The file of the plugin's module, None if the module has no file."""
    module = sys.modules.get(plugin.source.partition(":")[0])
    return getattr(module, "__file__", None)
