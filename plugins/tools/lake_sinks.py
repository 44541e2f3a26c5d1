"""The sink of a lake that a command of `ingestd lake` names, and its work on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from ingestd.api.errors import CommandError, SinkRetry, Unavailable
from ingestd.config import Config
from ingestd.delivery.options import read_sink_options
from ingestd.hooks.loader import Plugins
from ingestd.validation.schema_files import complete_schemas

__all__ = ["done", "lake_sink"]

Result = TypeVar("Result")


async def done(sink: Any, work: Callable[[], Result]) -> Result:
    try:
        return await asyncio.to_thread(work)
    except SinkRetry as error:
        raise Unavailable(f"the lake of {sink.name}: {error}") from None
    finally:
        await sink.close()


def lake_sink(name: str | None, config: Config, plugins: Plugins, *types: str) -> tuple[str, Any]:
    """The type of a sink, and the sink itself. No other plugin can register these types."""
    names = {each: table["type"] for each, table in config.sink_tables.items() if table.get("type") in types}
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there is none"
        raise CommandError(f"name a sink of the type {' or '.join(types)}: {known}")
    assert name is not None
    kind = plugins.sinks[names[name]]
    _, options = read_sink_options(name, config.sink_tables[name], kind, config)
    sink = kind(name, options)
    if sink.needs_schemas:
        sink.schemas = complete_schemas(config.schemas.directory)
    return names[name], sink
