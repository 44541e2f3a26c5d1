"""conf/ingestd.toml shows every option with its default: compared with the code, both ways."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ingestd.api.options import NamedOptions, Options, read_options
from ingestd.api.sink import Sink
from ingestd.config import SECTIONS
from ingestd.delivery import SinkOptions


def shown() -> dict[str, Any]:
    """The file with the options in its comments switched on."""
    text = files("ingestd.conf").joinpath("ingestd.toml").read_text()
    lines = []
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        is_option = bare != line and (" = " in bare or bare.startswith(("[sinks", "[plugins.webhooks.")))
        lines.append(bare if is_option else line)
    return tomllib.loads("\n".join(lines))


def sections() -> dict[str, type[Options]]:
    """Every section that the code reads, by its path."""
    found = {**SECTIONS}
    for point in entry_points(group="ingestd"):
        options = getattr(point.load(), "Options", None)
        if options is not None and point.dist is not None and point.dist.name == "ingestd":
            found[f"plugins.{point.name}"] = options
    return found


def test_every_option_is_shown_and_every_option_shown_exists() -> None:
    tables = shown()
    in_file = {
        f"{name}.{option}" for name, table in tables.items() for option in table if name not in {"plugins", "sinks"}
    }
    named = {path.removeprefix("plugins.") for path, type_ in sections().items() if issubclass(type_, NamedOptions)}
    for name, value in tables["plugins"].items():
        if name in named:
            continue
        in_file |= {f"plugins.{name}.{option}" for option in value} if isinstance(value, dict) else {f"plugins.{name}"}
    in_code = {
        f"{path}.{field.name}"
        for path, type_ in sections().items()
        if not issubclass(type_, NamedOptions)
        for field in msgspec.structs.fields(type_)
    }
    assert in_file == in_code


def test_an_example_of_each_section_with_names_is_shown() -> None:
    for path, type_ in sections().items():
        if issubclass(type_, NamedOptions):
            tables = shown()["plugins"][path.removeprefix("plugins.")]
            assert tables
            secrets = {"secret": "x", "previous_secret": "x"}  # theirs are systemd's
            given = {name: {**table, **secrets} for name, table in tables.items()}
            read_options(type_, given, path=path, source="conf", base=Path("/"))


def test_every_default_shown_is_the_default_of_the_code() -> None:
    tables = tomllib.loads(files("ingestd.conf").joinpath("ingestd.toml").read_text())
    for path, type_ in sections().items():
        table: Any = tables
        for part in path.split("."):
            table = table.get(part, {})
        table = {name: value for name, value in table.items() if not isinstance(value, dict)}
        assert read_options(type_, table, path=path, source="conf", base=Path("/")) == type_(), path


def sinks() -> dict[str, type[Sink]]:
    """The built-in sinks by their type."""
    found: dict[str, type[Sink]] = {}
    for point in entry_points(group="ingestd"):
        if point.dist is not None and point.dist.name == "ingestd" and ".sinks." in point.value:
            point.load().register_sinks(found.__setitem__)
    return found


def names(type_: type[Options]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(type_)}


def test_the_options_of_every_sink_are_shown() -> None:
    tables = {table["type"]: table for table in shown()["sinks"].values()}
    assert tables.keys() == sinks().keys()
    for kind, sink in sinks().items():
        common = names(SinkOptions) if kind == "jsonl" else {"type"}
        assert set(tables[kind]) == common | names(sink.Options), kind


def test_the_defaults_every_sink_has_are_shown() -> None:
    table = {name: value for name, value in shown()["sinks"]["archive"].items() if name in names(SinkOptions)}
    del table["filter"], table["transform"]  # the default is none
    assert read_options(SinkOptions, table, path="sinks", source="conf", base=Path("/")) == SinkOptions(type="jsonl")
