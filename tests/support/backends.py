"""The SQLite back end, opened like in the daemon, and the part of a daemon that plugins use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from ingestd.api.backend import Backend, Partition
from ingestd.api.hookspecs import BackendFactory
from ingestd.plugins.stores.sqlite import SqlitePlugin
from ingestd.storage.placements import index_of_tenant
from ingestd.support.unusable_ids import UnusableIds

__all__ = ["PluginDaemon", "sqlite_backend", "sqlite_daemon"]


class PluginDaemon:
    """The part of a daemon that plugins use (`ingestd.api.hookspecs.Daemon`)."""

    def __init__(self, backend: Backend) -> None:
        self.plugins: dict[str, object] = {}
        self.partitions = backend.partitions
        self.store = self.partitions[0].store
        self.unusable_ids = UnusableIds()
        self.config_path = "/etc/ingestd/ingestd.toml"
        self.registry = CollectorRegistry()
        self.tasks: list[asyncio.Task[None]] = []

    def of_tenant(self, tenant: str) -> Partition:
        return self.partitions[index_of_tenant(tenant, len(self.partitions))]

    def all_of_tenant(self, tenant: str) -> Sequence[Partition]:
        return [self.of_tenant(tenant)]

    def plugin(self, name: str) -> object | None:
        return self.plugins.get(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        """Cancel the watched tasks, and fail if one of them has failed."""
        for task in self.tasks:
            task.cancel()
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


@asynccontextmanager
async def sqlite_backend(folder: Path, *, serving: bool = True) -> AsyncIterator[Backend]:
    """The back end on the file `ingestd.db` of the folder (absolute): for the daemon, or for a command."""
    factories: dict[str, BackendFactory] = {}
    SqlitePlugin().register_stores(factories.__setitem__)
    backend = factories["sqlite"](f"sqlite://{folder / 'ingestd.db'}", folder)
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def sqlite_daemon(folder: Path, *, serving: bool = True) -> AsyncIterator[PluginDaemon]:
    """A daemon with that back end. At its end it cancels its watched tasks, and fails if one of them has failed."""
    async with sqlite_backend(folder, serving=serving) as backend:
        daemon = PluginDaemon(backend)
        try:
            yield daemon
        finally:
            await daemon.stop()
