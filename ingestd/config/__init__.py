"""The configuration: one TOML file, checked as a whole before anything starts."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from msgspec import Meta

from ingestd.api.errors import ConfigError
from ingestd.api.options import (
    Address,
    Duration,
    HostName,
    Network,
    Options,
    Origin,
    PositiveDuration,
    PositiveSize,
    Size,
    Url,
    read_options,
    unknown_option,
)
from ingestd.support.unusable_ids import UNUSABLE

from .overrides import apply_overrides

__all__ = ["SECTIONS", "Config", "ShowData", "find_config", "load_config", "parse_config", "read_tables"]


_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]

ShowData = Literal["all", "shape", "none"]
"""The part of callers' data that the operators' page shows."""


class HttpOptions(Options):
    listen: Address = Address("127.0.0.1", 8080)
    server: Literal["fast", "tornado"] = "fast"
    max_body: PositiveSize = Size.parse("1MiB")
    max_batch_body: PositiveSize = Size.parse("4MiB")
    max_header_size: PositiveSize = Size.parse("16KiB")
    max_connections: _Count = 4096
    max_connections_per_address: _Count = 1024
    max_buffered: PositiveSize = Size.parse("24MiB")
    max_waiting: _Count = 10_000
    body_timeout: PositiveDuration = Duration.parse("30s")
    idle_timeout: PositiveDuration = Duration.parse("75s")
    trusted_proxies: tuple[Network, ...] = ()
    store_address: Literal["no", "truncated", "whole"] = "no"
    allowed_origins: tuple[Origin, ...] = (Origin("*"),)
    allowed_headers: tuple[str, ...] = ()
    client: bool = True
    shutdown_timeout: Duration = Duration.parse("10s")
    former: ClassVar[Mapping[str, str]] = {
        "max_headers": "it is always 100 now",
        "header_timeout": "it is always 10 seconds now",
        "shutdown_grace": "it is always a second now",
    }


class StoreUrl(Url):
    example = "sqlite:ingestd.db"


class OpsOptions(Options):
    listen: Address = Address("127.0.0.1", 9464)
    allowed_hosts: tuple[HostName, ...] = ()
    show_data: ShowData = "shape"


class StoreOptions(Options):
    url: StoreUrl = StoreUrl("sqlite:///var/lib/ingestd/ingestd.db")
    max_size: PositiveSize | None = None


class JournalOptions(Options):
    url: StoreUrl | None = None
    max_size: PositiveSize | None = None
    on_full: Literal["refuse", "drop"] = "refuse"
    keep_for: PositiveDuration | None = None
    keep_size: PositiveSize | None = None
    wait_for_consumers: bool = True


class IdsOptions(Options):
    unusable: tuple[str, ...] = UNUSABLE


class LogsOptions(Options):
    format: Literal["auto", "text", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"
    access_errors: bool = True
    access_sample: _Share = 0.0


class SchemasOptions(Options):
    directory: Path | None = None


class PluginsOptions(Options):
    enabled: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()


_O = TypeVar("_O", bound=Options)


class Config(NamedTuple):
    """The whole configuration. `read` checks the options of plugins and sinks.

    `base` is the base folder of relative paths. `source` is the name of the file in messages. `tables` has the tables
    of the file, with the changes of `--set`. `overrides` maps each path that `--set` changed to the name in its
    argument.
    """

    source: str
    base: Path
    http: HttpOptions
    ops: OpsOptions
    store: StoreOptions
    journal: JournalOptions
    ids: IdsOptions
    logs: LogsOptions
    schemas: SchemasOptions
    plugins: PluginsOptions
    plugin_tables: Mapping[str, Mapping[str, Any]]
    sink_tables: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Any]
    overrides: Mapping[str, str]

    def __repr__(self) -> str:
        """A text without the tables, because they contain plain secrets."""
        return f"<configuration of {self.source}>"

    def read(self, type_: type[_O], table: Mapping[str, Any], path: str) -> _O:
        """Read and check the options of a plugin or sink. Raises `ConfigError`, which names the option."""
        return read_options(type_, table, path=path, source=self.place, base=self.base)

    def place(self, path: str) -> str:
        """The start of a message about an option or section: the file or the `--set`, and the path."""
        return _place(path, self.source, self.overrides)

    def origin(self, *names: str) -> Literal["default", "file", "--set"]:
        """The origin of an option's value. `names` are the names of its section and of the option."""
        table: Any = self.tables
        for name in names:
            if name not in table:
                return "default"
            table = table[name]
        return "file" if _override(".".join(names), self.overrides) is None else "--set"


def _place(path: str, source: str, overrides: Mapping[str, str]) -> str:
    name = _override(path, overrides)
    if name is None:
        return f"{source}: {path}"
    return f"--set {path}" if name == path else f"--set {name}: {path}"


def _override(path: str, overrides: Mapping[str, str]) -> str | None:
    """The name in the `--set` argument that gave this option or section, or None if no argument did."""
    near = [given for given in overrides if path == given or path.startswith((f"{given}.", f"{given}["))]
    return overrides[max(near, key=len)] if near else None


SECTIONS: Mapping[str, type[Options]] = {
    "http": HttpOptions,
    "ops": OpsOptions,
    "store": StoreOptions,
    "journal": JournalOptions,
    "ids": IdsOptions,
    "logs": LogsOptions,
    "schemas": SchemasOptions,
    "plugins": PluginsOptions,
}


def find_config(path: str | None) -> Path:
    """The path of the configuration file.

    It is `--config`, else `INGESTD_CONFIG`, else ./ingestd.toml, else /etc/ingestd/ingestd.toml.
    """
    named = path or os.environ.get("INGESTD_CONFIG")
    if named:
        return Path(named)
    candidates = [Path("ingestd.toml"), Path("/etc/ingestd/ingestd.toml")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ConfigError(
        f"no configuration: neither {candidates[0]} nor {candidates[1]} exists;"
        " name one with --config or INGESTD_CONFIG"
    )


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read and check a configuration file with the changes of `--set`. Raises `ConfigError`."""
    tables, given = read_tables(path, overrides)
    return parse_config(tables, source=str(path), base=path.resolve().parent, overrides=given)


def read_tables(path: Path, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The tables of a file with the changes of `--set`, and the changed paths. `parse_config` takes both."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:  # a TOMLDecodeError, or the error of a number with thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return tables, apply_overrides(tables, overrides)


def parse_config(
    tables: Mapping[str, Any], *, source: str, base: Path, overrides: Mapping[str, str] | None = None
) -> Config:
    """Check a configuration. `tables` and `overrides` are as `read_tables` returns them. Raises `ConfigError`."""
    overrides = overrides or {}

    def place(path: str) -> str:
        return _place(path, source, overrides)

    for name, table in tables.items():
        if name not in SECTIONS and name != "sinks":
            raise unknown_option(place(name), name, [*SECTIONS, "sinks"])
        if not isinstance(table, dict):
            raise ConfigError(f"{place(name)}: expected a section [{name}]")
    plugins = dict(tables.get("plugins", {}))
    plugin_tables = {name: plugins.pop(name) for name, value in list(plugins.items()) if isinstance(value, dict)}
    sinks = tables.get("sinks", {})
    for name, table in sinks.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{place(f'sinks.{name}')}: expected a section [sinks.{name}]")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"{place(f'sinks.{name}')}: a sink's name is 1 to 64 letters, digits, - and _")
    sections: dict[str, Any] = {
        name: read_options(
            type_, plugins if name == "plugins" else tables.get(name, {}), path=name, source=place, base=base
        )
        for name, type_ in SECTIONS.items()
    }
    directory = sections["schemas"].directory
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"{place('schemas.directory')}: {directory}: the directory of schemas does not exist")
    return Config(
        source=source,
        base=base,
        plugin_tables=plugin_tables,
        sink_tables=sinks,
        tables=tables,
        overrides=overrides,
        **sections,
    )
