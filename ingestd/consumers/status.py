"""The status of a consumer in a partition and over all of them, for metrics, logs and the operators' page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["ConsumerStatus", "ConsumerTotals"]


@dataclass
class ConsumerStatus:
    """The status of a consumer. It is always up to date."""

    name: str
    now: Callable[[], int]
    held: bool = False
    """Whether this daemon has acquired the cursor."""
    position: int = 0
    """The position of the last record that was durably processed."""
    last: int = 0
    """The position of the newest record in the journal, at most a quarter of a second old."""
    processed: int = 0
    """The number of records durably processed since the start of the daemon."""
    failures: int = 0
    """The number of failed attempts to open the consumer or to do a step. All of them are repeated."""
    last_error: str | None = None
    """Why the consumer fails at present; None if it works."""
    oldest_at: int | None = None
    """When the oldest pending record was received, in milliseconds; None if that is not known yet."""
    in_hand: int = 0
    """The number of records that were read and not processed yet. They are processed even if they are removed."""
    buffered: int = 0
    """The number of records that the consumer has taken into a buffer. They are pending until they are durable."""
    reached: int = 0
    """The position of the last record in hand or in the buffer."""
    paused: bool = False
    """Whether the consumer has asked for nothing at present, as a sink does after an operator's pause."""
    removed: int = 0
    """The last position up to which records were removed from the journal, as far as known."""
    lost: int = 0
    """The number of records removed before the consumer read them, since the start of the daemon.

    Records that are removed while nothing is in hand count as pending until the consumer finds the gap. So the
    processed, pending and lost records together are always all the records after the position at the start.
    """

    def count_on(self, other: ConsumerStatus) -> None:
        """Add the counts of the consumer that this one replaces."""
        self.processed += other.processed
        self.failures += other.failures
        self.lost += other.lost

    @property
    def pending(self) -> int:
        """The number of records that the consumer can still process."""
        if self.in_hand:
            return self.buffered + self.in_hand + max(0, self.last - max(self.reached, self.removed))
        if self.buffered:
            return self.buffered + max(0, self.last - self.reached)
        return max(0, self.last - self.position)

    def trimmed(self, up_to: int) -> None:
        """Called after the removal of all records up to that position."""
        if self.in_hand and self.held:
            self.lost += max(0, up_to - max(self.reached, self.removed))
        self.removed = max(self.removed, up_to)

    @property
    def oldest_pending_seconds(self) -> float:
        """The age of the oldest pending record, or 0 if there is none."""
        oldest_at = self.oldest_at  # one read, because other threads call this, and a second read may give None
        if oldest_at is None or not self.pending:
            return 0.0
        return max(0, self.now() - oldest_at) / 1000


class ConsumerTotals:
    """The status of a consumer, as `ConsumerStatus` has it for one partition. It is always up to date.

    Any thread may read it.
    """

    def __init__(self, parts: Sequence[ConsumerStatus]) -> None:
        self.parts = tuple(parts)
        self.name = parts[0].name

    @property
    def held(self) -> bool:
        """Whether this daemon has acquired the cursor of at least one partition."""
        return any(each.held for each in self.parts)

    @property
    def paused(self) -> bool:
        """Whether the consumer has asked for nothing in a partition. An operator's pause is for all of them."""
        return any(each.paused for each in self.parts)

    @property
    def processed(self) -> int:
        return sum(each.processed for each in self.parts)

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self.parts)

    @property
    def failures(self) -> int:
        return sum(each.failures for each in self.parts)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.parts)

    @property
    def last_error(self) -> str | None:
        """Why the consumer fails at present in a partition; None if it works in all of them."""
        return next((error for each in self.parts if (error := each.last_error) is not None), None)

    @property
    def state(self) -> str:
        """The state in a word or two, for operators."""
        if self.paused:
            return "paused"
        if not self.held:
            return "on another daemon"
        return "running" if self.last_error is None else "failing"

    @property
    def oldest_pending_seconds(self) -> float:
        return max(each.oldest_pending_seconds for each in self.parts)
