"""Configuration: one TOML file, checked as a whole before anything starts."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ConfigError
from .options import Address, Duration, Options, Size, read_options, unknown_option

__all__ = ["SECTIONS", "Config", "find_config", "load_config", "parse_config"]


class HttpOptions(Options):
    listen: Address = Address("127.0.0.1", 8080)
    max_body: Size = Size.parse("1MiB")
    max_waiting: int = 10_000
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ()
    shutdown_timeout: Duration = Duration.parse("10s")


class OpsOptions(Options):
    listen: Address = Address("127.0.0.1", 9464)


class StoreOptions(Options):
    url: str = "sqlite:///var/lib/ingestd/ingestd.db"


class JournalOptions(Options):
    url: str | None = None


class SchemasOptions(Options):
    directory: Path | None = None


class PluginsOptions(Options):
    enabled: tuple[str, ...] | None = None


class Config(NamedTuple):
    """The whole configuration; what plugins and sinks read of it is checked by `read_options`.

    `base` is the folder that relative paths are relative to, `source` the file's name in messages.
    """

    source: str
    base: Path
    http: HttpOptions
    ops: OpsOptions
    store: StoreOptions
    journal: JournalOptions
    schemas: SchemasOptions
    plugins: PluginsOptions
    plugin_tables: Mapping[str, Mapping[str, Any]]
    sink_tables: Mapping[str, Mapping[str, Any]]


SECTIONS: Mapping[str, type[Options]] = {
    "http": HttpOptions,
    "ops": OpsOptions,
    "store": StoreOptions,
    "journal": JournalOptions,
    "schemas": SchemasOptions,
    "plugins": PluginsOptions,
}


def find_config(path: str | None) -> Path:
    """`--config`, else `INGESTD_CONFIG`, else ./ingestd.toml, else /etc/ingestd/ingestd.toml."""
    named = path or os.environ.get("INGESTD_CONFIG")
    if named:
        return Path(named)
    places = [Path("ingestd.toml"), Path("/etc/ingestd/ingestd.toml")]
    for place in places:
        if place.exists():
            return place
    raise ConfigError(
        f"no configuration: neither {places[0]} nor {places[1]} exists; name one with --config or INGESTD_CONFIG"
    )


def load_config(path: Path) -> Config:
    """Read and check a configuration file. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return parse_config(tables, source=str(path), base=path.resolve().parent)


def parse_config(tables: Mapping[str, Any], *, source: str, base: Path) -> Config:
    """Check a configuration given as the tables of its file."""
    for name, table in tables.items():
        if name not in SECTIONS and name != "sinks":
            raise unknown_option(source, name, [*SECTIONS, "sinks"])
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {name}: expected a section [{name}]")
    plugins = dict(tables.get("plugins", {}))
    plugin_tables = {name: plugins.pop(name) for name, value in list(plugins.items()) if isinstance(value, dict)}
    sinks = tables.get("sinks", {})
    for name, table in sinks.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: sinks.{name}: expected a section [sinks.{name}]")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"{source}: sinks.{name}: a sink's name is 1 to 64 letters, digits, - and _")
    sections: dict[str, Any] = {
        name: read_options(
            type_, plugins if name == "plugins" else tables.get(name, {}), path=name, source=source, base=base
        )
        for name, type_ in SECTIONS.items()
    }
    return Config(source=source, base=base, plugin_tables=plugin_tables, sink_tables=sinks, **sections)
