"""The two sides of a copy: stores that the command line names by URL, outside of the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ingestd.api.backend import Backend, Partition
from ingestd.api.contents import Contents
from ingestd.api.errors import CommandError, ConfigError, Unavailable
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.support.names import hint

__all__ = ["Side", "make_backend", "open_sides", "refuse_missing", "shown"]

_APART = ("consumer-step", "entered-step")
"""Kinds that only the two stores of a separate journal have."""


@dataclass(frozen=True)
class Side:
    """An open partition of a store."""

    url: str
    """The URL of the store without a password."""
    name: str
    """The name of the partition, which is empty if it is the only one."""
    store: Store
    journal: Journal
    contents: Contents

    def __str__(self) -> str:
        return f"partition {self.name} of {self.url}" if self.name else self.url


def make_backend(option: str, url: str, config: Config, plugins: Plugins) -> Backend:
    """The back end of a URL, not open yet. Raises `ConfigError`, which names the option."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError(f'{option}: expected a URL with its scheme, such as "sqlite:{shown(url)}"')
    if scheme not in plugins.stores:
        cure = hint(f"{scheme}:…", [f"{each}:…" for each in sorted(plugins.stores)])
        raise ConfigError(f"{option}: no plugin offers a store for {scheme}:…; {cure}")
    try:
        return plugins.stores[scheme](url, config.base)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error


async def refuse_missing(option: str, url: str, backend: Backend) -> None:
    """Raises `CommandError` if there is no store: opening it would make an empty one."""
    if not await backend.exists():
        raise CommandError(f"{option}: there is no store at {shown(url)}")


@asynccontextmanager
async def open_sides(option: str, url: str, backend: Backend) -> AsyncIterator[Sequence[Side]]:
    """Open a back end for this command: a side for each partition.

    Raises `CommandError` if it cannot be copied, `Unavailable` without any of its partitions, and as `Backend.open`.
    """
    await backend.open(serving=False)
    try:
        sides = [_side(option, url, partition) for partition in backend.partitions]
        for side in sides:
            await _refuse_apart(option, side)
        yield sides
    finally:
        await backend.close()


def _side(option: str, url: str, partition: Partition) -> Side:
    if partition.contents is None:
        raise CommandError(f"{option}: the plugin of this store does not offer copying")
    if partition.name and (problem := partition.problem()) is not None:
        raise Unavailable(f"{option}: partition {partition.name}: {problem}")
    return Side(shown(url), partition.name, partition.store, partition.journal, partition.contents)


async def _refuse_apart(option: str, side: Side) -> None:
    for kind in _APART:
        async for _ in side.store.scan(kind):
            raise CommandError(
                f"{option}: {side} is one of two stores, since [journal] url had another value than [store] url;"
                " only a store with state and journal can be copied"
            )


def shown(url: str) -> str:
    """The URL without a password and without options."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
