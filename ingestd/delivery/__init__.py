"""Delivery of the journal to sinks: batches, retries, dead letters, filters, operators' commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ingestd.api.errors import ConfigError
from ingestd.api.sink import Sink, Transform
from ingestd.config import Config
from ingestd.hooks.plugin_validation import check_sink

from .buffered_consumer import BufferedSinkConsumer
from .options import SinkOptions, read_sink_options
from .sink_consumer import SinkConsumer
from .status import SinkStatus, feeders_of, sink_statuses
from .transforms import check_filter, make_transform

__all__ = [
    "BufferedSinkConsumer",
    "SinkConsumer",
    "SinkOptions",
    "SinkStatus",
    "feeders_of",
    "make_sink_consumer",
    "read_sink_options",
    "sink_statuses",
]


def make_sink_consumer(
    name: str,
    table: Mapping[str, Any],
    sink_class: type[Sink],
    config: Config,
    keys: Collection[str] | None = None,
    *,
    transforms: Mapping[str, Transform],
    channels: Collection[str] = (),
    before: SinkConsumer | None = None,
) -> SinkConsumer:
    """Make the sink of `[sinks.NAME]` and its consumer. Raises `ConfigError`, which names file and option.

    `keys` has the known event keys; and `channels` those of attributions; the filter may name no others.
    `transforms` has the transforms of all plugins.
    `before` is the present consumer of that name. It is returned if nothing has changed.
    """
    options, own_options = read_sink_options(name, table, sink_class, config)
    path = f"sinks.{name}"
    if keys is not None:
        check_filter(options.filter, keys, channels, config.place(f"{path}.filter"))
    transform = make_transform(options.transform, transforms, config.place(f"{path}.transform"))
    if (
        before is not None
        and (type(before.sink), before.options, before.sink.options) == (sink_class, options, own_options)
        and before.transform == transform
        and not (before.sink.needs_schemas and before.sink.schemas != _schemas(config))
    ):
        return before
    try:
        sink = sink_class(name, own_options)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{config.place(path)}: the sink cannot be set up: {error!r}") from error
    try:
        check_sink(sink, name)
    except ConfigError as error:
        raise ConfigError(f"{config.place(path)}: sink type {options.type}: {error}") from error
    if sink.needs_schemas:
        sink.schemas = _schemas(config)
    consumer_class = BufferedSinkConsumer if sink.buffering else SinkConsumer
    return consumer_class(sink, options, transform)


def _schemas(config: Config) -> Mapping[str, Mapping[str, Any]]:
    from ingestd.validation.schema_files import complete_schemas  # slow to import, and most commands need none

    return complete_schemas(config.schemas.directory)
