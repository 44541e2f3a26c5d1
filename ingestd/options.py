"""Typed options: what a section of the configuration, a plugin's or a sink's, may say, and how it is read.

Sections are `Options` classes; a plugin or sink brings its own. An unknown option is an error with
its path and the nearest name, a wrong value says what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .errors import ConfigError

__all__ = ["Address", "Duration", "Options", "Size", "read_options", "unknown_option"]


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


_O = TypeVar("_O", bound=Options)


def read_options(type_: type[_O], table: Mapping[str, Any], *, path: str, source: str, base: Path) -> _O:
    """The options of one section, checked. `path` is its name, such as `plugins.session`.

    Raises `ConfigError` with file, option and what was expected.
    """
    fields = {field.name: field for field in msgspec.structs.fields(type_)}
    types = get_type_hints(type_)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in fields:
            raise unknown_option(source, f"{path}.{name}", [f"{path}.{known}" for known in fields])
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


def unknown_option(source: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return ConfigError(f"{source}: {name}: unknown option; {hint}")
