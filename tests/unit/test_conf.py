"""conf/ingestd.toml shows every option with its default: compared with the code, both ways."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ingestd.config import SECTIONS
from ingestd.delivery import SinkOptions
from ingestd.options import Options, read_options
from ingestd.plugins.sinks.jsonl import JsonlSink


def shown() -> dict[str, Any]:
    """The file with the options it can only show in a comment switched on."""
    text = files("ingestd.conf").joinpath("ingestd.toml").read_text()
    lines = []
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        is_option = bare != line and (" = " in bare or bare.startswith("[sinks"))
        lines.append(bare if is_option else line)
    return tomllib.loads("\n".join(lines))


def sections() -> dict[str, type[Options]]:
    """Every section the code reads, by its path."""
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
    for name, value in tables["plugins"].items():
        in_file |= {f"plugins.{name}.{option}" for option in value} if isinstance(value, dict) else {f"plugins.{name}"}
    in_code = {f"{path}.{field.name}" for path, type_ in sections().items() for field in msgspec.structs.fields(type_)}
    assert in_file == in_code


def test_every_default_shown_is_the_code_s() -> None:
    tables = tomllib.loads(files("ingestd.conf").joinpath("ingestd.toml").read_text())
    for path, type_ in sections().items():
        table: Any = tables
        for part in path.split("."):
            table = table.get(part, {})
        table = {name: value for name, value in table.items() if not isinstance(value, dict)}
        assert read_options(type_, table, path=path, source="conf", base=Path("/")) == type_(), path


def test_the_options_of_a_jsonl_sink_are_shown() -> None:
    common = {field.name for field in msgspec.structs.fields(SinkOptions)}
    own = {field.name for field in msgspec.structs.fields(JsonlSink.Options)}
    assert set(shown()["sinks"]["archive"]) == common | own
