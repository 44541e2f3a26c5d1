"""The part of a daemon that plugins get from a command."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ingestd.api.backend import Partition
from ingestd.api.errors import CommandError
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends
from ingestd.support.unusable_ids import UnusableIds

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["CommandDaemon"]


class CommandDaemon:
    """The `Daemon` that plugins get from a command."""

    def __init__(self, backends: Backends, plugins: Plugins, unusable_ids: UnusableIds) -> None:
        self._plugins = plugins
        self.store = backends.store
        self.partitions = backends.partitions
        self._backends = backends
        self.unusable_ids = unusable_ids

    @cached_property
    def registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry  # here: few commands need it

        return CollectorRegistry()

    def of_tenant(self, tenant: str) -> Partition:
        return self._backends.of_tenant(tenant)

    def all_of_tenant(self, tenant: str) -> Sequence[Partition]:
        return self._backends.all_of_tenant(tenant)

    def plugin(self, name: str) -> object | None:
        return self._plugins.manager.get_plugin(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        work.close()
        raise CommandError(f"{name}: a command cannot run background tasks")
