"""docs/reloading.md says for every option how a change takes effect, and the code agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from ingestd.config import SECTIONS, parse_config
from ingestd.daemon.generation import is_fixed
from ingestd.hooks.loader import load_plugins

TEXT = (Path(__file__).parents[2] / "docs" / "reloading.md").read_text()
ROWS = re.findall(r"^\| (.*`.*) \| (reload|restart) \|$", TEXT, re.MULTILINE)


def documented(path: str) -> str:
    """How a change of the option takes effect, by its row or else by the row of its section."""
    told = [
        (len(name), how)
        for names, how in ROWS
        for name in re.findall(r"`([a-z_.]+)`", names)
        if path == name or path.startswith(f"{name}.")
    ]
    assert told, f"no row documents {path}"
    longest = max(length for length, _ in told)
    (only,) = {how for length, how in told if length == longest}
    return str(only)


def options() -> Iterator[tuple[str, str]]:
    """Every option, with the effect of a change according to the code."""
    for name, type_ in SECTIONS.items():
        for field in msgspec.structs.fields(type_):
            path = f"{name}.{field.name}"
            yield path, "restart" if is_fixed(path, None) else "reload"
    names = {point.name for point in entry_points(group="ingestd") if point.dist and point.dist.name == "ingestd"}
    tables = {"store": {"url": "sqlite:x"}, "plugins": {"enabled": sorted(names)}}
    for plugin in load_plugins(parse_config(tables, source="x.toml", base=Path("/"))).loaded:
        if plugin.options is not None:
            for field in msgspec.structs.fields(plugin.options):
                path = f"plugins.{plugin.name}.{field.name}"
                yield path, "restart" if is_fixed(path, plugin) else "reload"


def test_the_way_to_change_an_option_is_documented_correctly() -> None:
    found = dict(options())
    assert {*found.values()} == {"restart", "reload"}
    assert {path: documented(path) for path in found} == found


def test_only_existing_options_are_documented() -> None:
    sections = {path.rpartition(".")[0] for path, _ in options()} | {"sinks"}
    paths = {path for path, _ in options()}
    named = {name for names, _ in ROWS for name in re.findall(r"`([a-z_.]+)`", names)}
    assert named <= sections | paths
