"""Watches the daemon's clock: against the monotonic clock, for jumps, and against the clocks of its stores.

A wrong clock would end all that has a lifetime: 400 days ahead for half a minute, the journal and the memory of
messages. So the daemon has a clock of its own. It follows the system's clock, but for jumps of more than a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.check_result import show_age
from ingestd.observability.metrics import Metrics
from ingestd.support.periodic import every

__all__ = ["Clocks"]

_log = logging.getLogger("ingestd.clocks")

_WRONG = 2_000  # milliseconds from which a difference is told
_RIGHT = 1_000  # milliseconds below which it is over
_STILL = 60.0  # seconds between two looks, from which the pause is told
_FOLLOWED = 60_000  # milliseconds: the daemon follows shorter jumps
_CURE = "if the new time is right, confirm it by `ingestd reload`"


class Clocks:
    def __init__(self, partitions: Sequence[Partition], metrics: Metrics) -> None:
        self._partitions = partitions
        self.jump = 0
        """Milliseconds by which the system's clock is ahead of the daemon's since a jump that it did not follow."""
        self._looked_at = time.monotonic()
        self._is_apart = False
        """Whether the difference to the clock of a store has been told."""
        metrics.show(
            "ingestd_clock_jump_seconds",
            "How far the system's clock is ahead of the daemon's since a jump that the daemon does not follow.",
            lambda: self.jump / 1000,
        )
        metrics.show(
            "ingestd_store_clock_ahead_seconds",
            "How far the clock of the store's server is ahead of the daemon's, 0 within the time of a request.",
            lambda: self.store_ahead / 1000,
        )

    async def run(self) -> None:
        """Look every second while the daemon runs."""
        times.keep_own_clock()
        try:
            await every("clocks", self.look, first=0)
        finally:
            times.go_by_system_clock()

    def look(self) -> None:
        self._tell_standstill()
        self._look_at_system(times.system_clock_ahead())
        self._look_at_stores()

    def confirm(self) -> None:
        """Follow the jump of the system's clock: an operator says that the new time is right."""
        if self.jump:
            _log.warning("the time is confirmed: the daemon follows the jump of the system's clock")
            self.jump = 0
            times.keep_own_clock()

    def remark(self) -> str | None:
        """What is wrong with a clock, for operators; None if nothing is."""
        if self.jump:
            return f"the system's clock has jumped {_told(self.jump)}, which the daemon does not follow; {_CURE}"
        if self._is_apart:
            return self._difference()
        return None

    def _tell_standstill(self) -> None:
        """Tell of minutes in which the process did nothing: callers have given up by then, and leases have ended."""
        now = time.monotonic()
        still, self._looked_at = now - self._looked_at, now
        if still > _STILL:
            _log.warning(
                "this process stood still for %s: something has stopped it (SIGSTOP, a debugger, the freezer of its"
                " group), or one call has held the event loop", show_age(round(still * 1000)),
            )  # fmt: skip

    def _look_at_system(self, ahead: int) -> None:
        # A jump that ends a difference to the store's clock corrects this clock, which was wrong since the start. The
        # difference must be older than the jump: the clock of a store on the same machine jumps too.
        corrects = not self.jump and self._is_apart and abs(ahead - self.store_ahead) < _WRONG
        if abs(ahead) > _FOLLOWED and not corrects:
            if abs(ahead - self.jump) > _WRONG:
                _log.warning(
                    "the system's clock has jumped %s. The daemon goes on by its former time, so that nothing ends too"
                    " soon; %s", _told(ahead), _CURE,
                )  # fmt: skip
            self.jump = ahead
            return
        if self.jump:
            _log.info("the system's clock is back, and the daemon follows it again")
        elif abs(ahead) >= _WRONG:
            _log.warning("the system's clock has jumped %s, and the daemon follows it", _told(ahead))
        self.jump = 0
        times.keep_own_clock()

    def _look_at_stores(self) -> None:
        ahead = abs(self.store_ahead)
        if not self._is_apart and ahead >= _WRONG:
            self._is_apart = True
            _log.warning(
                "%s. Events have the time of the daemon that received them: a click may seem to come after its order"
                " on another daemon. Synchronize the clocks of all machines",
                self._difference(),
            )
        elif self._is_apart and ahead < _RIGHT:
            self._is_apart = False
            _log.info("the clocks of the store and of this daemon agree again")

    @property
    def store_ahead(self) -> int:
        """Milliseconds by which the clock of a store is ahead of the daemon's: of the partition with the largest."""
        return max((each.store.clock_ahead for each in self._partitions), key=abs, default=0)

    def _difference(self) -> str:
        ahead = self.store_ahead
        where = "behind" if ahead < 0 else "ahead of"
        return f"the clock of the store's server is {show_age(abs(ahead))} {where} this daemon's"


def _told(ahead: int) -> str:
    return f"{show_age(abs(ahead))} {'back' if ahead < 0 else 'ahead'}"
