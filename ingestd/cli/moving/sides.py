"""The two sides of a copy: stores that the command line names by URL, outside of the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ingestd.api.backend import Backend
from ingestd.api.contents import Contents
from ingestd.api.errors import CommandError, ConfigError
from ingestd.api.journal import Journal
from ingestd.api.nearest import nearest
from ingestd.api.store import Store
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

__all__ = ["Side", "make_backend", "open_side", "shown"]

_APART = ("consumer-step", "entered-step")
"""Kinds that only the two stores of a separate journal have."""


@dataclass(frozen=True)
class Side:
    """An open store."""

    url: str
    """Without a password."""
    store: Store
    journal: Journal
    contents: Contents


def make_backend(option: str, url: str, config: Config, plugins: Plugins) -> Backend:
    """The back end of a URL, not open yet. Raises `ConfigError`, which names the option."""
    scheme = url.partition(":")[0]
    if scheme not in plugins.stores:
        near = nearest(scheme, [*plugins.stores])
        hint = f"did you mean {near}:…?" if near else f"known: {', '.join(sorted(plugins.stores))}"
        raise ConfigError(f"{option}: no plugin offers a store for {scheme}:…; {hint}")
    try:
        return plugins.stores[scheme](url, config.base)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error


@asynccontextmanager
async def open_side(option: str, url: str, backend: Backend) -> AsyncIterator[Side]:
    """Open a back end for this command. Raises `CommandError` if it cannot be copied, and as `Backend.open` does."""
    await backend.open(serving=False)
    try:
        if len(backend.partitions) > 1:
            raise CommandError(f"{option}: a store with several partitions cannot be copied yet")
        (partition,) = backend.partitions
        if partition.contents is None:
            raise CommandError(f"{option}: the plugin of this store does not offer copying")
        side = Side(shown(url), partition.store, partition.journal, partition.contents)
        await _refuse_apart(option, side)
        yield side
    finally:
        await backend.close()


async def _refuse_apart(option: str, side: Side) -> None:
    for kind in _APART:
        async for _ in side.store.scan(kind):
            raise CommandError(
                f"{option}: {side.url} is one of two stores, since [journal] url had another value than [store] url;"
                " only a store with state and journal can be copied"
            )


def shown(url: str) -> str:
    """The URL without a password and without options."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
