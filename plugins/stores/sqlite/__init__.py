"""The embedded back end: journal and state in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from ingestd.api import hookimpl
from ingestd.api.hookspecs import BackendFactory, Daemon
from ingestd.api.options import Options as BaseOptions
from ingestd.api.options import PositiveSize, Size

from .backend import CACHE, CACHE_SIZE, SqliteBackend
from .files import locate

__all__ = ["SqliteBackend", "SqlitePlugin"]


class SqlitePlugin:
    class Options(BaseOptions):
        cache_size: PositiveSize = Size(CACHE_SIZE)
        former: ClassVar[Mapping[str, str]] = {
            "cache": f"it is always {CACHE} now", "busy_timeout": "it is always a second now"
        }  # fmt: skip

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._made: list[SqliteBackend] = []

    @hookimpl
    def register_stores(self, register: Callable[[str, BackendFactory], None]) -> None:
        register("sqlite", self._make)

    def _make(self, url: str, base: Path) -> SqliteBackend:
        backend = SqliteBackend(locate(url, base), cache_size=int(self._options.cache_size))
        self._made.append(backend)
        return backend

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        if self._made:  # otherwise store and journal use other back ends
            from .metrics import SqliteCollector  # here: commands start faster without the client library

            daemon.registry.register(SqliteCollector(self._made))
