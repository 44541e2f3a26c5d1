"""The contract of a back end: stores and journals behind one URL.

A plugin registers a back end for the scheme of the URL (hook `register_stores`). `ingestd.testing` has the suites that
its store and journal must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .check_result import CheckResult
from .contents import Contents
from .errors import CommandError, Unavailable
from .journal import Journal
from .store import Store

__all__ = ["Backend", "DaemonProcess", "MissingPartitions", "Partition", "describe_partition"]


def describe_partition(name: str, tenants: int | None) -> str:
    """A partition in a text for operators: `partition 03 (5 tenants)`, or `partition 03` if the number is unknown.

    Empty without a name: the back end has a single partition.
    """
    if not name:
        return ""
    number = "" if tenants is None else f" ({tenants} tenant{'' if tenants == 1 else 's'})"
    return f"partition {name}{number}"


class Partition(NamedTuple):
    """A store and its journal. All data of a tenant is in one partition, and a transaction is within one.

    Most back ends have a single partition. The partitions of a back end fail and work independently of each other.
    """

    name: str
    """Unique within the back end, and stable; empty if the back end has a single partition."""
    store: Store
    journal: Journal
    problem: Callable[[], str | None]
    """As `Backend.problem`, for this partition."""
    contents: Contents | None = None
    """As `Backend.contents`, for this partition."""


class MissingPartitions:
    """The partitions that a command cannot reach, each with the reason. It does the rest of its work, and then fails.

    The error of a single partition is raised at once: nothing remains to be done.
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        """`partitions` are all that the command works on."""
        self._is_single = len(partitions) == 1
        self.reasons: dict[str, str] = {}
        """By the name of the partition."""

    @contextmanager
    def tolerating(self, partition: Partition) -> Iterator[None]:
        """Leaves the block if the partition cannot be reached."""
        try:
            yield
        except Unavailable as error:
            if self._is_single:
                raise
            self.reasons[partition.name] = str(error)

    def check(self, consequence: str) -> None:
        """Raises `CommandError` if a partition is missing. `consequence` says what this means for the result."""
        if self.reasons:
            names = ", ".join(sorted(self.reasons))
            what = f"partition {names} is" if len(self.reasons) == 1 else f"partitions {names} are"
            reason = next(iter(self.reasons.values()))
            raise CommandError(f"{what} out of reach, so {consequence}: {reason}")


class DaemonProcess(NamedTuple):
    """A daemon that serves from a back end."""

    pid: int
    host: str
    """The name of its machine, as `socket.gethostname` returns it."""
    id: str = ""
    """Its name in the back end, if it has one."""


class Backend(ABC):
    """A store and a journal behind one URL, or several partitions of both, opened and closed together."""

    store: Store
    journal: Journal
    """A back end with several partitions leaves `store` and `journal` unset."""
    is_shared: bool = False
    """Whether several daemons can use it at once."""
    contents: Contents | None = None
    """For `ingestd store copy`. A back end without it cannot be copied."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """All partitions, in an order that never changes. Their number never changes either."""
        return (Partition("", self.store, self.journal, self.problem, self.contents),)

    async def places(self) -> Sequence[Mapping[str, str | int]]:
        """Where each partition is, in the order of `partitions`: facts for operators, such as its node.

        Facts of all partitions have the same names. A back end in a single place has none. Raises `Unavailable`.
        """
        return [{} for _ in self.partitions]

    @abstractmethod
    async def open(self, *, serving: bool) -> None:
        """Open for the daemon (`serving`), or for a command, also beside a running daemon.

        A command changes no data of an earlier version: it raises `UpgradeNeeded`. Raises `ConfigError` if it can never
        work with this configuration, `Unavailable` if it may work later.
        """

    async def receive_copy(self) -> None:  # noqa: B027 - most need nothing
        """Make an empty store ready for `ingestd store copy`, and keep in it what must never change.

        Raises `ConfigError` if the store was made otherwise, and `Unavailable`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish the work in progress and release everything."""

    @abstractmethod
    def problem(self) -> str | None:
        """Why events cannot be stored durably at present, in a few words; None if they can.

        With several partitions: why the events of some tenants cannot be stored, and which partitions are concerned.
        """

    @abstractmethod
    async def describe(self) -> Sequence[CheckResult]:
        """The findings of `ingestd check` about the back end. It may look closer than `open`, and takes seconds at
        most.

        The finding `daemon` has the fact `pid`: the process of a daemon on this machine that has the back end open, if
        there is one. Raises `Unavailable`.
        """

    async def exists(self) -> bool:
        """Whether there is a store. Callers do not call `open` first.

        A back end overrides this if its `open` would make what is missing, such as a file. It must create nothing.
        """
        return True

    async def daemons(self) -> Sequence[DaemonProcess]:
        """The daemons that serve from the back end now. Callers do not call `open` first.

        `ingestd reload` finds daemons by this. It must create nothing. Raises `ConfigError`, `Unavailable`, `OSError`.
        """
        return ()

    async def back_up(self, file: Path) -> None:
        """Write all data, as it is at one moment, to a new file that only its owner can read.

        Callers do not call `open` first, and a daemon may be running. Raises `CommandError`, `ConfigError`, `OSError`.
        """
        raise CommandError("this store makes no backups: use the tools of its server")

    async def restore(self, file: Path) -> Path | None:
        """Replace all data by a backup. Returns where the former data is kept, if there was any.

        The store has a loss of data after that. Callers do not call `open` first. Raises `CommandError`, also if a
        daemon is running, `ConfigError`, `OSError`.
        """
        raise CommandError("this store restores no backups: use the tools of its server")

    async def upgrade(self, *, keep: bool) -> str | None:
        """Upgrade data of an earlier version, as `open` does for a daemon. `keep` keeps a copy of the former data.

        Returns a sentence about what was done, or None if there was nothing to do. Callers do not call `open` first.
        Raises `CommandError`, also if a daemon is running, `ConfigError`, `Unavailable`.
        """
        return None
