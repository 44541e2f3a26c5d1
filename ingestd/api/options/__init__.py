"""Typed options of the configuration, and how they are read.

Each section is an `Options` class; a plugin or sink defines its own. An unknown option is an error that names its path
and the nearest known name. The error of a wrong value names the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ingestd.api.errors import ConfigError
from ingestd.support.hosts import HostName, Origin, has_credentials, is_local, password_in_clear, remote_host
from ingestd.support.names import hint

from .secret import Secret, Url
from .types import POSITIVE, Address, Duration, Network, PositiveDuration, PositiveSize, Size, since

__all__ = [
    "Address",
    "Duration",
    "HostName",
    "NamedOptions",
    "Network",
    "Options",
    "Origin",
    "PositiveDuration",
    "PositiveSize",
    "Secret",
    "Size",
    "Url",
    "has_credentials",
    "is_local",
    "password_in_clear",
    "read_options",
    "remote_host",
    "shown",
    "since",
    "unknown_option",
]


_TYPES = {
    "array": "an array in brackets", "bool": "true or false", "float": "a number", "int": "a whole number",
    "object": "a table", "str": "text",
}  # fmt: skip
"""The words for msgspec's names of types, which operators need not know."""


class Options(msgspec.Struct, kw_only=True):
    """Base class of every section. A subclass has typed fields with defaults.

    Types: str, bool, int, float, Path, Duration, Size, Address, Network, HostName, Origin, Secret, Url,
    Literal, tuples and other Options. Bounds: `Annotated[int, msgspec.Meta(ge=1)]`, PositiveDuration, PositiveSize.
    An option without a default must be given.
    """

    former: ClassVar[Mapping[str, str]] = {}
    """Names that are no options any more, each with what a configuration that has it is told."""


class NamedOptions(Options):
    """A section of tables with names that the operator chooses, such as `[plugins.webhooks.NAME]`.

    The option `type` of a table selects its class. Without it the first one of `kinds` counts.
    """

    kinds: ClassVar[Mapping[str, type[Options]]]
    tables: Mapping[str, Options] = msgspec.field(default_factory=dict)
    """The tables by their names."""


_O = TypeVar("_O", bound=Options)


def read_options(
    type_: type[_O], table: Mapping[str, Any], *, path: str, source: str | Callable[[str], str], base: Path
) -> _O:
    """Read and check the options of one section. `path` is its name, such as `plugins.session`.

    `source` is the name of the file, or a function from the path of an option to the start of a message. Raises
    `ConfigError`, which names file, option and expected form.
    """
    place = source if callable(source) else lambda name: f"{source}: {name}"
    if issubclass(type_, NamedOptions):
        tables = {name: _read_named(type_.kinds, each, f"{path}.{name}", place, base) for name, each in table.items()}
        return type_(tables=tables)
    fields, types = _fields_of(type_)
    values: dict[str, Any] = {}
    for name, value in table.items():
        where = f"{path}.{name}"
        if name not in fields:
            why = type_.former.get(name) or hint(where, [f"{path}.{known}" for known in fields])
            raise ConfigError(f"{place(where)}: unknown option; {why}")
        wanted = types[name]
        several: Any = get_args(wanted)[0] if get_origin(wanted) is tuple else None
        nested: Any = next(filter(_is_options, (wanted, *get_args(wanted))), None) if several is None else None
        if nested is not None and isinstance(value, dict):
            values[name] = read_options(nested, value, path=where, source=place, base=base)
        elif _is_options(several) and isinstance(value, list) and all(isinstance(each, dict) for each in value):
            values[name] = tuple(
                read_options(several, each, path=f"{where}[{index}]", source=place, base=base)
                for index, each in enumerate(value)
            )
        else:
            values[name] = _read_value(wanted, value, where=place(where), base=base)
    for name, field in fields.items():
        if field.required and name not in values:
            raise ConfigError(f"{place(f'{path}.{name}')}: must be given")
    return type_(**values)


@cache
def _fields_of(type_: type[Options]) -> tuple[Mapping[str, msgspec.structs.FieldInfo], Mapping[str, Any]]:
    """The fields of a class and their types, by name."""
    return {field.name: field for field in msgspec.structs.fields(type_)}, get_type_hints(type_, include_extras=True)


def _read_named(
    kinds: Mapping[str, type[Options]], table: Any, path: str, place: Callable[[str], str], base: Path
) -> Options:
    if not isinstance(table, dict):
        raise ConfigError(f"{place(path)}: expected a table, got {table!r}")
    kind = table.get("type", next(iter(kinds)))
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{place(f'{path}.type')}: expected one of {', '.join(kinds)}, got {kind!r}")
    return read_options(kinds[kind], table, path=path, source=place, base=base)


def _is_options(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Options)


def _may_be_secret(type_: Any) -> bool:
    if _is_options(type_):
        return any(map(_may_be_secret, get_type_hints(type_).values()))
    return (isinstance(type_, type) and issubclass(type_, Secret)) or any(map(_may_be_secret, get_args(type_)))


def _read_value(wanted: Any, value: Any, *, where: str, base: Path) -> Any:
    def special(type_: Any, raw: Any) -> Any:
        if issubclass(type_, Secret):
            return type_.read(raw, base)
        if hasattr(type_, "parse"):
            return type_.parse(raw)
        if issubclass(type_, Path) and isinstance(raw, str):
            return base / raw
        raise ValueError(f"expected {type_.__name__.lower()}")

    try:
        if wanted is Address:  # a NamedTuple, which msgspec would read from an array
            return Address.parse(value)
        if get_origin(wanted) is Literal and value not in get_args(wanted):
            raise ValueError(f"expected one of {', '.join(map(repr, get_args(wanted)))}")
        result = msgspec.convert(value, wanted, dec_hook=special)
        if result == 0 and any(POSITIVE in getattr(each, "__metadata__", ()) for each in (wanted, *get_args(wanted))):
            raise ValueError(f"expected {POSITIVE}")
    except (msgspec.ValidationError, ValueError) as error:
        reason, _, place = str(error).replace("Expected", "expected").partition(" - at `$")
        reason = re.sub("^expected `([a-z |]+)`", _in_words, reason.partition(", got `")[0])
        # A password may precede an @, even in an option that is not a secret.
        got = "" if _may_be_secret(wanted) or "@" in str(value) else f", got {value!r}"
        raise ConfigError(f"{where}{place.rstrip('`')}: {reason}{got}") from None
    return result


def _in_words(types: re.Match[str]) -> str:
    return "expected " + " or ".join(_TYPES.get(each, each) for each in types[1].split(" | ") if each != "null")


def unknown_option(place: str, name: str, known: list[str]) -> ConfigError:
    """The error for an unknown option. `place` begins the message: the file or argument, and the option's path."""
    return ConfigError(f"{place}: unknown option; {hint(name, known)}")


def shown(value: Any) -> Any:
    """The value of an option, or whole `Options`, for TOML or JSON. Secrets are hidden, and numbers have their units.

    `read_options` accepts the result, except for hidden secrets. None stays None.
    """
    if isinstance(value, Secret):
        return shown(value.shown)
    if isinstance(value, NamedOptions):
        return shown(value.tables)
    if isinstance(value, Options):
        return {name: shown(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(name): shown(each) for name, each in value.items()}
    if type(value) in {list, tuple}:  # not an Address
        return [shown(each) for each in value]
    return value if value is None or type(value) in {str, bool, int, float} else str(value)
