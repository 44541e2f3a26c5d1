"""A new store in a folder, and imports into it in the process of the test."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ingestd.api.backend import Backend
from ingestd.api.consumer import Consumer
from ingestd.config import parse_config
from ingestd.hooks.loader import load_plugins
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.tools.export import RecordSelection
from ingestd.plugins.tools.importing.command import import_events
from ingestd.storage.backends import open_backends

from .imports import written
from .journals import read_all, running

__all__ = ["Target"]

CONFIG = parse_config({"store": {"url": "sqlite:ingestd.db"}}, source="test", base=Path("/nowhere"))
PLUGINS = load_plugins(CONFIG)
DEFAULTS = {
    "tenant": None, "format": None, "state": False, "unordered": False, "dry_run": False, "errors": None,
    "max_errors": 1000, "json": False,
}  # fmt: skip
"""The arguments of the command."""


class Target:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self._config = CONFIG._replace(base=self._folder)

    def take(self, *files: Path | Sequence[Any], **arguments: Any) -> None:
        """Import files, or lines that are written to a file. Raises what the command raises."""
        names = [
            str(each if isinstance(each, Path) else written(self._folder, each, f"lines-{number}.jsonl"))
            for number, each in enumerate(files)
        ]
        asyncio.run(import_events(Namespace(**{**DEFAULTS, **arguments}, files=names), self._config, PLUGINS))

    def exported(self) -> list[dict[str, Any]]:
        """The records as `ingestd events export` prints them."""

        async def read() -> list[dict[str, Any]]:
            async with open_backends(self._config, PLUGINS) as backends:
                records = await read_all(backends.partitions[0].journal)
                return [record.decode() for record in records if RecordSelection().matches(record)]

        return asyncio.run(read())

    def attribute(self) -> list[dict[str, Any]]:
        """Let attribution read the journal to its end. Returns its records, by their ids."""

        async def attribute() -> None:
            consumers: list[Consumer] = []
            AttributionPlugin(AttributionPlugin.Options()).register_consumers(consumers.append)
            async with (
                open_backends(self._config, PLUGINS) as backends,
                running(cast("Backend", backends.partitions[0]), *consumers),
            ):
                pass

        asyncio.run(attribute())
        derived = [record for record in self.exported() if record["type"].startswith("attribution")]
        return sorted(derived, key=lambda record: str(record["id"]))
