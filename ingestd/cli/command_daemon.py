"""The part of a daemon that plugins get from a command."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ingestd.api.errors import CommandError
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends
from ingestd.support.unusable_ids import UnusableIds

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["CommandDaemon"]


class CommandDaemon:
    """The `Daemon` that plugins get from a command."""

    def __init__(self, backends: Backends, plugins: Plugins, config: Config) -> None:
        self._plugins = plugins
        self.store = backends.store
        self.partitions = backends.partitions
        self.of_tenant = backends.of_tenant
        self.all_of_tenant = backends.all_of_tenant
        self.unusable_ids = UnusableIds(config.ids.unusable)
        self.config_path = os.path.abspath(config.source)

    @cached_property
    def registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry  # here: few commands need it

        return CollectorRegistry()

    def plugin(self, name: str) -> object | None:
        return self._plugins.manager.get_plugin(name)

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        work.close()
        raise CommandError(f"{name}: a command cannot run background tasks")
