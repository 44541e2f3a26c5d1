"""The status of a consumer over all partitions."""

from __future__ import annotations

from collections.abc import Sequence

from .status import ConsumerStatus

__all__ = ["ConsumerTotals"]


class ConsumerTotals:
    """The status of a consumer, as `ConsumerStatus` has it for one partition. It is always up to date.

    Any thread may read it.
    """

    def __init__(self, parts: Sequence[ConsumerStatus]) -> None:
        self._parts = tuple(parts)
        self.name = parts[0].name

    @property
    def held(self) -> bool:
        """Whether this daemon has acquired the cursor of at least one partition."""
        return any(each.held for each in self._parts)

    @property
    def paused(self) -> bool:
        """Whether the consumer has asked for nothing in a partition. An operator's pause is for all of them."""
        return any(each.paused for each in self._parts)

    @property
    def processed(self) -> int:
        return sum(each.processed for each in self._parts)

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self._parts)

    @property
    def failures(self) -> int:
        return sum(each.failures for each in self._parts)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self._parts)

    @property
    def last_error(self) -> str | None:
        """Why the consumer fails at present in a partition; None if it works in all of them."""
        return next((error for each in self._parts if (error := each.last_error) is not None), None)

    @property
    def oldest_pending_seconds(self) -> float:
        return max(each.oldest_pending_seconds for each in self._parts)
