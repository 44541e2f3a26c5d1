"""The back ends of a configuration, opened and closed together."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from ingestd.api.backend import Backend, DaemonProcess, Partition
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import CommandError, ConfigError, Unavailable, WriteConflict
from ingestd.api.store import Store
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.support.periodic import every

from .copy_mark import refuse_unfinished
from .partitions import PartitionedStore
from .placements import Placements, unfinished
from .split_journal import Ownership, SplitJournal

__all__ = ["QUICK_LOOK", "Backends", "open_backends"]

_log = logging.getLogger("ingestd.storage")

_LONG = 30.0  # seconds for which events of a tenant that is moved are refused
QUICK_LOOK = 0.2
"""Seconds between two looks of a daemon at the map of moved tenants, while a tenant is moved."""


class Backends:
    """The store and the journal in use. They belong to one back end or to two."""

    def __init__(self, config: Config, plugins: Plugins) -> None:
        backend = _make_backend("store.url", config.store.url, config, plugins)
        self._all = [backend]
        self._places = [config.place("store.url")]
        """The option that names each back end, with its file."""
        self._is_shared = backend.is_shared
        self.partitions: Sequence[Partition] = backend.partitions
        self.store: Store
        self.ownership: Ownership | None = None
        """Set if several daemons can reach the state, and each of them has a separate journal."""
        if config.journal.url is not None and config.journal.url != config.store.url:
            apart = _make_backend("journal.url", config.journal.url, config, plugins)
            if apart.is_shared:
                raise ConfigError(
                    f"{config.place('journal.url')}: several daemons can reach a journal there, so the state must be"
                    " there too; leave [journal] url out, and give [store] url its value"
                )
            if len(self.partitions) > 1:
                raise ConfigError(
                    f"{config.place('journal.url')}: the store has several partitions, so the journal must be there"
                    " too; leave [journal] url out"
                )
            self._all.append(apart)
            self._places.append(config.place("journal.url"))
            journal = SplitJournal(apart.journal, apart.store, backend.store)
            self.partitions = [Partition("", backend.store, journal, self.problem)]
            if backend.is_shared:
                self.ownership = Ownership(backend.store, apart.store)
        self.placements = Placements(len(self.partitions))
        if len(self.partitions) == 1:
            self.store = self.partitions[0].store
        else:
            self.store = PartitionedStore(self.partitions, self.placements)

    def of_tenant(self, tenant: str) -> Partition:
        """The partition of a tenant."""
        return self.partitions[self.placements.index_of(tenant)]

    def all_of_tenant(self, tenant: str) -> Sequence[Partition]:
        """The partitions with records of a tenant: its own first, then those that it was moved from."""
        return [self.partitions[index] for index in self.placements.indices_of(tenant)]

    async def follow_placements(self) -> None:
        """Learn of tenants that are moved, and warn of a move that takes long. Never returns."""
        names, told_at = [each.name for each in self.partitions], time.monotonic()

        async def look() -> float | None:
            nonlocal told_at
            with contextlib.suppress(Unavailable, WriteConflict):  # the next look repeats it
                await self.placements.learn([each.store for each in self.partitions])
            if not self.placements.is_halted:
                told_at = time.monotonic()
            elif time.monotonic() - told_at > _LONG:
                told_at = time.monotonic()
                _log.warning("%s", unfinished(self.placements.map, names))
            return QUICK_LOOK if self.placements.is_changing else None

        await every("placements", look)

    async def places(self) -> Sequence[Mapping[str, str | int]]:
        """Where each partition is, as `Backend.places` returns it. Raises `Unavailable`."""
        return await self._all[0].places()

    async def open(self, *, serving: bool) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for backend in self._all:
                await backend.open(serving=serving)
                stack.push_async_callback(backend.close)
            if serving:
                for place, backend in zip(self._places, self._all, strict=True):
                    await refuse_unfinished(place, backend.partitions[0].store)
            try:
                await self.placements.learn([each.store for each in self.partitions])
            except Unavailable as error:
                if serving or len(self.partitions) == 1:
                    raise
                self.placements.problem = error  # a command may need the other partitions only
            if serving and self.ownership is not None:
                await self.ownership.take()
                await self.ownership.compare_store()
            stack.pop_all()  # all are open, and stay open

    async def close(self) -> None:
        if self.ownership is not None:
            with contextlib.suppress(Unavailable):  # then the next daemon waits until this one was silent long enough
                await self.ownership.release()
        for backend in self._all:
            await backend.close()

    async def remember_store(self) -> None:
        """Record the present store beside the journal, after a loss of data. Raises `Unavailable`."""
        if self.ownership is not None:
            await self.ownership.remember_store()

    async def recover(self) -> None:
        """Complete the journal with the steps that a killed daemon has left noted in the state.

        For commands that must see all records. Raises `Unavailable`.
        """
        for partition in self.partitions:
            if isinstance(partition.journal, SplitJournal):
                await partition.journal.recover()

    def must_be_shared(self, config: Config) -> None:
        """Raises `ConfigError` unless several daemons can use these back ends at once."""
        cure = "let [store] url be redis://HOST and leave [journal] url out (docs/redis.md), or serve without --shared"
        for option, alone in (("store.url", not self._is_shared), ("journal.url", len(self._all) > 1)):
            if alone:
                raise ConfigError(
                    f"{config.place(option)}: only one daemon can have it, but --shared is for several daemons; {cure}"
                )

    @property
    def single(self) -> Backend:
        """The back end of both state and journal. Raises `CommandError` if they belong to two."""
        if len(self._all) > 1:
            raise CommandError("[journal] url and [store] url are two stores, and a copy of one does not fit the other")
        return self._all[0]

    async def upgrade(self, *, keep: bool) -> list[str]:
        """Upgrade data of an earlier version. Returns what was done. Raises like `Backend.upgrade`."""
        return [done for backend in self._all if (done := await backend.upgrade(keep=keep))]

    def problem(self) -> str | None:
        return next((problem for backend in self._all if (problem := backend.problem())), None)

    async def daemons(self) -> list[DaemonProcess]:
        """The daemons that serve from these back ends now. They need not be open. Raises like `Backend.daemons`."""
        return [daemon for backend in self._all for daemon in await backend.daemons()]

    async def describe(self) -> list[CheckResult]:
        return [finding for backend in self._all for finding in await backend.describe()]


def _make_backend(option: str, url: str, config: Config, plugins: Plugins) -> Backend:
    scheme = url.partition(":")[0]
    try:
        return plugins.stores[scheme](url, config.base)
    except ConfigError as error:
        raise ConfigError(f"{config.place(option)}: {error}") from error


@contextlib.asynccontextmanager
async def open_backends(config: Config, plugins: Plugins) -> AsyncIterator[Backends]:
    """Open the back ends for a command, also beside a running daemon."""
    backends = Backends(config, plugins)
    await backends.open(serving=False)
    try:
        yield backends
    finally:
        await backends.close()
