"""`ingestd plugins list`: the plugins in force, their hooks, sinks and stores, and their origin."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugin, Plugins
from ingestd.support.terminal import printable, table

__all__ = ["list_plugins"]

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
