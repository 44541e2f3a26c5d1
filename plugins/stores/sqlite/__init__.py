"""The embedded back end: journal and state in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingestd import hookimpl
from ingestd.errors import ConfigError
from ingestd.hookspecs import BackendFactory
from ingestd.options import Duration
from ingestd.options import Options as BaseOptions

from .backend import SqliteBackend
from .files import locate

__all__ = ["SqliteBackend", "SqlitePlugin"]


class SqlitePlugin:
    class Options(BaseOptions):
        cache: int = 200_000
        busy_timeout: Duration = Duration.parse("1s")

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        if self._options.cache < 1:
            raise ConfigError("plugins.sqlite.cache: must be at least 1")

    @hookimpl
    def register_stores(self, register: Callable[[str, BackendFactory], None]) -> None:
        register("sqlite", self._make)

    def _make(self, url: str, base: Path) -> SqliteBackend:
        return SqliteBackend(
            locate(url, base), cache=self._options.cache, busy_timeout=float(self._options.busy_timeout)
        )
