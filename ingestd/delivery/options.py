"""The options of a sink: options of every sink, and options of its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ingestd.api.errors import ConfigError
from ingestd.api.options import Duration, Options, PositiveDuration, PositiveSize, Secret, Size
from ingestd.api.sink import Sink
from ingestd.config import Config
from ingestd.support.backoff import Backoff
from ingestd.support.json_pointers import RecordPointer

__all__ = ["BatchOptions", "FilterOptions", "RetryOptions", "SinkOptions", "TransformOptions", "read_sink_options"]

_Count = Annotated[int, Meta(ge=1)]
_MOST = 1_000_000_000  # records of a batch; memory is the limit, and `max_bytes` bounds it


class BatchOptions(Options):
    max_events: Annotated[int, Meta(ge=1, le=_MOST)] = 500
    max_bytes: PositiveSize = Size.parse("4MiB")
    max_wait: Duration = Duration.parse("200ms")


class RetryOptions(Options):
    attempts: _Count = 8
    initial: PositiveDuration = Duration.parse("200ms")
    max: PositiveDuration = Duration.parse("30s")

    @property
    def backoff(self) -> Backoff:
        return Backoff(float(self.initial), float(self.max))


class FilterOptions(Options):
    """The filter of a sink. An option that is None excludes nothing."""

    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    channels: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None


class TransformOptions(Options):
    """Changes of the records for one sink. The journal keeps them whole."""

    drop: tuple[RecordPointer, ...] = ()
    rename: dict[str, str] = msgspec.field(default_factory=dict)
    """New names, each in the object that the pointer leads to."""
    hash: tuple[RecordPointer, ...] = ()
    secret: Secret | None = None
    """The key of the hashes."""


class SinkOptions(Options, kw_only=True):
    type: str
    start: Literal["now", "beginning"] = "now"
    timeout: PositiveDuration = Duration.parse("30s")
    batch: BatchOptions = msgspec.field(default_factory=BatchOptions)
    retry: RetryOptions = msgspec.field(default_factory=RetryOptions)
    filter: FilterOptions = msgspec.field(default_factory=FilterOptions)
    transform: str | TransformOptions | None = None
    """The name of a transform that a plugin registers, or changes of members."""


def read_sink_options(
    name: str, table: Mapping[str, Any], sink_class: type[Sink], config: Config
) -> tuple[SinkOptions, Options]:
    """Read the common options of a sink and the options of its type. Raises `ConfigError`, which names the option."""
    path = f"sinks.{name}"
    common = {field.name for field in msgspec.structs.fields(SinkOptions)}
    own = {field.name for field in msgspec.structs.fields(sink_class.Options)}
    if common & own:
        clash = ", ".join(sorted(common & own))
        raise ConfigError(f"{config.place(path)}: {sink_class.__name__} defines {clash}, which every sink has")
    # Both sets are read at once first, so that the error of a misspelt name has the nearest of all names.
    fields, former = [(each, Any, None) for each in (*common, *own)], {"former": sink_class.Options.former}
    both: Any = msgspec.defstruct("SinkOptions", fields, bases=(Options,), namespace=former)
    config.read(both, table, path)

    def part(type_: type[Options], known: set[str]) -> Any:
        return config.read(type_, {each: value for each, value in table.items() if each in known}, path)

    return part(SinkOptions, common), part(sink_class.Options, own)
