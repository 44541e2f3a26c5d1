"""Operator commands that were given in one or several partitions, and how they have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingestd.api.backend import Partition
from ingestd.delivery.progress import Progress

__all__ = ["Given", "Outcome"]


@dataclass
class Given:
    """An operator command that was given in a partition, and its progress."""

    partition: Partition
    number: int
    count: int
    """The number of records or dead letters that it goes through."""
    measure: Callable[[Progress], int]
    """How many of them it has gone through, by the progress while it is executed."""
    before: Progress | None = None
    """The progress when the command began, None if this process has not seen it."""
    progress: Progress | None = None
    """The progress when this process has last looked."""

    @property
    def is_done(self) -> bool:
        return self.progress is not None and self.progress.command >= self.number

    @property
    def after(self) -> Progress | None:
        """The progress when the command ended, or now. None if later commands have been executed since."""
        is_known = self.progress is not None and self.progress.command <= self.number
        return self.progress if is_known else None

    @property
    def reached(self) -> int | None:
        """The part of `count` that is done, None if the command has not begun."""
        if self.is_done:
            return self.count
        is_next = self.progress is not None and self.progress.command == self.number - 1
        return self.measure(self.progress) if is_next and self.progress is not None else None

    def see(self, progress: Progress | None) -> None:
        """Take the present progress. It is the one before the command if that is the next one and has not begun."""
        self.progress = progress
        order, at = (0, 0) if progress is None else (progress.command, progress.at)
        if order == self.number - 1 and not at:
            self.before = progress or Progress(0)


@dataclass(frozen=True)
class Outcome:
    given: Sequence[Given]
    interrupted: int | None
    """The signal that ended the waiting before the command was done."""
    elsewhere: bool
    """Whether a daemon has the sink."""

    def added(self, count: Callable[[Progress], int]) -> int | None:
        """By how much the commands have raised a count, None if other commands may have raised it too."""
        sums = 0
        for each in self.given:
            if each.before is None or each.after is None:
                return None
            sums += count(each.after) - count(each.before)
        return sums
