"""Recovery from a loss of data in the store: plugins restore what they can, and report missing data."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence

from ingestd.api.backend import describe_partition
from ingestd.api.errors import IngestdError, Unavailable
from ingestd.api.store import Store
from ingestd.support.periodic import TIMING, every, seconds_between_looks

__all__ = ["LossRecovery"]

_log = logging.getLogger("ingestd.store_loss")

_MOST_LOOK = 1.0  # seconds between two looks for a loss that this process has met, with many partitions
_AGAIN = 1.0  # seconds after a failure
_ASK = 2.0  # seconds between two questions to the store, in which another process may have changed the loss
_MOST_ASK = 10.0  # the same at most, with many partitions
_ASK_LOST = 0.75  # the same while a loss stands, because an operator waits for it to be cleared

CURE = "restore the store, or run `ingestd store acknowledge-loss`"


class LossRecovery:
    """Calls `recover` after each loss, and about every second while a loss stands.

    `recover` calls the hook `store_lost` of all plugins, and returns the missing data as texts. Once no data is
    missing, the loss is cleared.
    """

    def __init__(
        self,
        store: Store,
        recover: Callable[[], Awaitable[Sequence[str]]],
        *,
        partition: str = "",
        partitions: int = 1,
    ) -> None:
        """`partition` is the name of the store's partition, and `partitions` is their number."""
        self._store = store
        self._partition = partition
        self._pause = seconds_between_looks(TIMING.losses, partitions, _MOST_LOOK)
        self._asks = seconds_between_looks(_ASK, partitions, _MOST_ASK)
        self._recover = recover
        self._missing: Sequence[str] = ()
        self._told: str | None = None
        self._seen = 0
        """The number of losses that are handled."""
        self._rested = 0.0
        """Seconds since the last question to the store."""
        self._asked_at: Hashable = None
        """The version of the store at the last question."""

    @property
    def place(self) -> str:
        """The partition and its number of tenants; empty if there is only one partition."""
        return describe_partition(self._partition, self._store.tenants)

    @property
    def _in(self) -> str:
        return f" in {self.place}" if self._partition else ""

    @property
    def problem(self) -> str | None:
        """The loss that stands, with its cure, for operators; None without a loss."""
        loss = self._store.loss
        if loss is None:
            return None
        missing = "".join(f"; missing: {each}" for each in self._missing)
        return f"{loss}{missing}; {CURE}"

    async def run(self) -> None:
        """Look for losses while the daemon runs."""
        store = self._store
        if store.loss is not None and not store.losses:
            _log.warning("a loss of data%s is not acknowledged yet: %s; %s", self._in, store.loss, CURE)
        await every("losses", self._step, first=0, pause=self._pause)

    async def _step(self) -> float | None:
        store, losses = self._store, self._store.losses
        self._rested += self._pause
        if losses != self._seen or self._rested >= (self._asks if store.loss is None else _ASK_LOST):
            self._rested, version = 0.0, store.version
            if version is not None and (version, losses, None) == (self._asked_at, self._seen, store.loss):
                return None
            if not await self._handle_loss(is_new=losses != self._seen):
                return _AGAIN
            self._seen, self._asked_at = losses, version
        return None

    async def _handle_loss(self, *, is_new: bool) -> bool:
        """Handle a new or standing loss. Return False if that failed and must be tried again."""
        try:
            await self._store.look_for_loss()
            if is_new or self._store.loss is not None:
                await self._make_good()
        except Unavailable as error:  # the back end logs its failure, and this is tried again
            _log.debug("%s", error)
            return False
        except IngestdError as error:
            self._tell_failure(error)
            return False
        return True

    async def _make_good(self) -> None:
        losses = self._store.losses
        self._missing = await self._recover()
        # After another loss meanwhile, the data that was found may be gone.
        if self._missing or self._store.losses != losses or self._store.loss is None:
            return
        await self._store.clear_loss()
        _log.info("nothing is missing after the loss of data%s; the loss is cleared", self._in)

    def _tell_failure(self, error: IngestdError) -> None:
        text = f"after a loss of data{self._in}: {error}"
        if text != self._told:
            self._told = text
            _log.error("%s", text, exc_info=error.__cause__)
