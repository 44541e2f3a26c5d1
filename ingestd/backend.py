"""The contract of a back end: a store and a journal behind one URL.

A plugin registers it for the scheme of the URL (hook `register_stores`); `ingestd.testing` has the
suites its store and journal must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from .findings import Finding
from .journal import Journal
from .store import Store

__all__ = ["Backend", "DaemonProcess"]


class DaemonProcess(NamedTuple):
    """A daemon that serves from a back end."""

    pid: int
    host: str
    """The name of its machine, as `socket.gethostname` has it."""
    id: str = ""
    """Its name in the back end, if it has one."""


class Backend(ABC):
    """A store and a journal behind one URL, opened and closed together."""

    store: Store
    journal: Journal

    @abstractmethod
    async def open(self, *, serving: bool) -> None:
        """Open for the daemon (`serving`), or for a command, also beside a running daemon.

        Raises `ConfigError` where it can never work like this, `Unavailable` where it may later.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun and let go of everything."""

    @abstractmethod
    def problem(self) -> str | None:
        """Why events cannot be stored durably at the moment, in a few words; None when they can."""

    @abstractmethod
    async def describe(self) -> Sequence[Finding]:
        """What `ingestd check` says about it, looking closer than `open` does, within seconds.

        Among them is one named `daemon`, whose fact `pid` is the process of a daemon that has it open,
        where there is one and it runs on this machine. Raises `Unavailable`.
        """

    async def daemons(self) -> Sequence[DaemonProcess]:
        """The daemons that serve from it now. Called without `open`, which it need not do.

        `ingestd reload` finds them by this. It must create nothing. Raises `ConfigError`, `Unavailable`, `OSError`.
        """
        return ()
