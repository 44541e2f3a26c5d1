"""The back ends a configuration names, opened and closed as one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from ingestd.api.backend import Backend, DaemonProcess
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.journal import Journal
from ingestd.api.store import Store
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

from .split_journal import Ownership, SplitJournal

__all__ = ["Backends", "open_backends"]


class Backends:
    """The store and the journal in force, which may be one back end or two."""

    def __init__(self, config: Config, plugins: Plugins) -> None:
        backend = _make_backend("store.url", config.store.url, config, plugins)
        self._all = [backend]
        self.store: Store = backend.store
        self.journal: Journal = backend.journal
        self.ownership: Ownership | None = None
        """Of a state that several daemons can reach, each with a journal elsewhere."""
        if config.journal.url is not None and config.journal.url != config.store.url:
            apart = _make_backend("journal.url", config.journal.url, config, plugins)
            if apart.store.distant:
                raise ConfigError(
                    f"{config.place('journal.url')}: several daemons can reach a journal there, so what they remember"
                    " must be with it; leave [journal] url out, and give [store] url its value"
                )
            self._all.append(apart)
            self.journal = SplitJournal(apart.journal, apart.store, self.store)
            if self.store.distant:
                self.ownership = Ownership(self.store, apart.store)

    async def open(self, *, serving: bool) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for backend in self._all:
                await backend.open(serving=serving)
                stack.push_async_callback(backend.close)
            if serving and self.ownership is not None:
                await self.ownership.take()
                await self.ownership.compare_store()
            stack.pop_all()  # all are open, and stay so

    async def close(self) -> None:
        if self.ownership is not None:
            with contextlib.suppress(Unavailable):  # then the next one waits until we have been silent for long enough
                await self.ownership.release()
        for backend in self._all:
            await backend.close()

    async def remember_store(self) -> None:
        """Have the journal's side know the store that there is after a loss of data. Raises `Unavailable`."""
        if self.ownership is not None:
            await self.ownership.remember_store()

    async def recover(self) -> None:
        """For a command that must see all there is: have the journal take what a killed daemon has left noted."""
        if isinstance(self.journal, SplitJournal):
            await self.journal.recover()

    def must_be_shared(self, config: Config) -> None:
        """Raises `ConfigError` unless several daemons can have them at once."""
        cure = "let [store] url be redis://HOST and leave [journal] url out (docs/redis.md), or serve without --shared"
        for option, alone in (("store.url", not self.store.distant), ("journal.url", len(self._all) > 1)):
            if alone:
                raise ConfigError(
                    f"{config.place(option)}: only one daemon can have it, and --shared is for several; {cure}"
                )

    def problem(self) -> str | None:
        return next((problem for backend in self._all if (problem := backend.problem())), None)

    async def daemons(self) -> list[DaemonProcess]:
        """The daemons that serve from them now. Nothing need be open. Raises as `Backend.daemons` does."""
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
    """The back ends as a command opens them, also beside a running daemon."""
    backends = Backends(config, plugins)
    await backends.open(serving=False)
    try:
        yield backends
    finally:
        await backends.close()
