"""How far a consumer is, for who shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ConsumerStatus"]


@dataclass
class ConsumerStatus:
    """How far a consumer is; kept up to date, to be read at any time."""

    name: str
    now: Callable[[], int]
    held: bool = False
    """Whether it is this daemon that goes on with it."""
    position: int = 0
    """Of the last record it has durably done with."""
    last: int = 0
    """Of the newest record in the journal, at most a quarter of a second old."""
    processed: int = 0
    """Records durably done with since the start of the daemon."""
    failures: int = 0
    """Attempts to open it or to do a step that failed and were, or will be, made again."""
    last_error: str | None = None
    """Why it does not get on at the moment; None when it does."""
    oldest_at: int | None = None
    """When the oldest record that waits was received, in milliseconds; None where it is not known yet."""
    in_hand: int = 0
    """Records it was given and has not done with yet. It gets done with them even if they are removed meanwhile."""
    reached: int = 0
    """The position of the last one in hand."""
    paused: bool = False
    """Whether it does nothing because it was told so."""
    removed: int = 0
    """Up to this position the journal's records have been removed, as far as it is known here."""
    lost: int = 0
    """Records removed before it was given them, since the start of the daemon.

    Those removed while it has nothing in hand count as pending until it comes upon the gap. So at any
    time what it has done with, what is pending and what is lost are all the records behind the place it
    started from.
    """

    def count_on(self, other: ConsumerStatus) -> None:
        """Go on from the counts of the one that was in its place."""
        self.processed += other.processed
        self.failures += other.failures
        self.lost += other.lost

    @property
    def pending(self) -> int:
        """Records that it has not done with, and still can."""
        if self.in_hand:
            return self.in_hand + max(0, self.last - max(self.reached, self.removed))
        return max(0, self.last - self.position)

    def trimmed(self, up_to: int) -> None:
        """The journal's records up to that position have been removed."""
        if self.in_hand and self.held:
            self.lost += max(0, up_to - max(self.reached, self.removed))
        self.removed = max(self.removed, up_to)

    @property
    def oldest_pending_seconds(self) -> float:
        """The age of the oldest of them, 0 if there are none."""
        oldest_at = self.oldest_at  # once: it is read on other threads too, and may be None the next time
        if oldest_at is None or not self.pending:
            return 0.0
        return max(0, self.now() - oldest_at) / 1000
