"""Once for each scheme of `[store] url` and `[journal] url`."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ingestd.api import hookimpl
from ingestd.api.backend import Backend
from ingestd.api.hookspecs import BackendFactory
from ingestd.plugins.stores.sqlite import SqliteBackend


def make_scratch(url: str, base: Path) -> Backend:
    """`scratch:` is a store to try things with: every start begins with an empty one."""
    return SqliteBackend(Path(tempfile.mkdtemp()) / "scratch.db", cache=10_000, busy_timeout=1.0)


@hookimpl
def register_stores(register: Callable[[str, BackendFactory], None]) -> None:
    register("scratch", make_scratch)
