"""Configuration: one TOML file, checked as a whole before anything starts.

Sections are `Options` classes; a plugin or sink brings its own. An unknown option is an error with
its path and the nearest name, a wrong value says what was expected.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .errors import ConfigError

__all__ = ["SECTIONS", "Address", "Config", "Duration", "Options", "Size", "find_config", "load_config", "read_options"]


class _Unit(float):
    """A number with a unit, written as text such as `30m`."""

    units: ClassVar[Mapping[str, float]]
    example: ClassVar[str]

    @classmethod
    def parse(cls: type[_U], text: Any) -> _U:
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text) if isinstance(text, str) else None
        if match is None or match[2] not in cls.units:
            raise ValueError(f'expected a number with a unit ({", ".join(cls.units)}), such as "{cls.example}"')
        return cls(float(match[1]) * cls.units[match[2]])


_U = TypeVar("_U", bound=_Unit)


class Duration(_Unit):
    """Seconds, written as `500ms`, `5s`, `30m`, `24h`, `7d`."""

    units: ClassVar[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    example = "30m"

    @property
    def milliseconds(self) -> int:
        return round(self * 1000)


class Size(_Unit):
    """Bytes, written as `256kB`, `1MiB`."""

    units: ClassVar[Mapping[str, float]] = {
        "B": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
    example = "1MiB"


class Address(NamedTuple):
    """Where to listen, written as `127.0.0.1:8080` or `[::1]:8080`; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: Any) -> Address:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):(\d{1,5})", text) if isinstance(text, str) else None
        if match is None or int(match[2]) > 65535:
            raise ValueError('expected an address and a port, such as "127.0.0.1:8080" or "[::1]:8080"')
        return cls(match[1].strip("[]"), int(match[2]))


class Options(msgspec.Struct, kw_only=True):
    """Base of every section: subclass it with typed fields, each with its default.

    Types: str, bool, int, float, Path, Duration, Size, Address, Literal, tuples and other Options.
    A field without a default is an option that must be given.
    """


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

_O = TypeVar("_O", bound=Options)


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
            raise _unknown(source, name, [*SECTIONS, "sinks"])
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


def read_options(type_: type[_O], table: Mapping[str, Any], *, path: str, source: str, base: Path) -> _O:
    """The options of one section, checked. `path` is its name, such as `plugins.session`.

    Raises `ConfigError` with file, option and what was expected.
    """
    fields = {field.name: field for field in msgspec.structs.fields(type_)}
    types = get_type_hints(type_)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in fields:
            raise _unknown(source, f"{path}.{name}", [f"{path}.{known}" for known in fields])
        wanted, where = types[name], f"{path}.{name}"
        several: Any = get_args(wanted)[0] if get_origin(wanted) is tuple else None
        if _is_options(wanted) and isinstance(value, dict):
            values[name] = read_options(wanted, value, path=where, source=source, base=base)
        elif _is_options(several) and isinstance(value, list) and all(isinstance(each, dict) for each in value):
            values[name] = tuple(
                read_options(several, each, path=f"{where}[{index}]", source=source, base=base)
                for index, each in enumerate(value)
            )
        else:
            values[name] = _read_value(wanted, value, where=f"{source}: {where}", base=base)
    for name, field in fields.items():
        if field.required and name not in values:
            raise ConfigError(f"{source}: {path}.{name}: must be given")
    return type_(**values)


def _is_options(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Options)


def _read_value(wanted: Any, value: Any, *, where: str, base: Path) -> Any:
    def special(type_: type, raw: Any) -> Any:
        if issubclass(type_, _Unit):
            return type_.parse(raw)
        if issubclass(type_, Path) and isinstance(raw, str):
            return base / raw
        raise ValueError(f"expected {type_.__name__.lower()}")

    try:
        if wanted is Address:  # a NamedTuple, which msgspec would read from an array
            return Address.parse(value)
        if get_origin(wanted) is Literal and value not in get_args(wanted):
            raise ValueError(f"expected one of {', '.join(map(repr, get_args(wanted)))}")
        return msgspec.convert(value, wanted, dec_hook=special)
    except (msgspec.ValidationError, ValueError) as error:
        reason, _, place = str(error).replace("Expected", "expected").partition(" - at `$")
        reason = reason.partition(", got `")[0]
        raise ConfigError(f"{where}{place.rstrip('`')}: {reason}, got {value!r}") from None


def _unknown(source: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return ConfigError(f"{source}: {name}: unknown option; {hint}")
