"""All faults of a configuration. Loading it stops at the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ingestd.api.errors import ConfigError
from ingestd.config import SECTIONS, parse_config, read_tables
from ingestd.delivery import make_sink_consumer
from ingestd.hooks.loader import load_plugins

__all__ = ["every_fault"]

_Tables = Mapping[str, Any]


def every_fault(file: Path, overrides: Iterable[str]) -> list[str]:
    """The faults of the file with the arguments of `--set`, each as the message of its `ConfigError`.

    The search removes each faulty part and reads the rest again. A plugin's or sink's section reports only its first
    fault: without the faulty option, the section could lack a required one.
    """
    try:
        tables, given = read_tables(file, overrides)
    except ConfigError as error:
        return [str(error)]

    def read(tables: _Tables) -> str | None:
        try:
            config = parse_config(tables, source=str(file), base=file.resolve().parent, overrides=given)
            plugins = load_plugins(config)
            for name, table in config.sink_tables.items():
                sink_class = plugins.sinks[table["type"]]
                make_sink_consumer(name, table, sink_class, config, transforms=plugins.transforms)
        except ConfigError as error:
            return str(error)
        return None

    faults: list[str] = []
    while (fault := read(tables)) is not None:
        faults.append(fault)
        rest = next((smaller for smaller in _smaller(tables) if read(smaller) != fault), None)
        if rest is None:
            break
        tables = rest
    return faults


def _smaller(tables: _Tables) -> Iterator[dict[str, Any]]:
    """The tables, each time without another one of their parts."""
    for name, table in tables.items():
        others = {each: value for each, value in tables.items() if each != name}
        if isinstance(table, dict) and (name in SECTIONS or name == "sinks"):
            for option in table:
                yield {**others, name: {each: value for each, value in table.items() if each != option}}
        else:
            yield others
