"""The partitions that a command cannot reach. It does the rest of its work, and then fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .backend import Partition
from .errors import CommandError, Unavailable

__all__ = ["MissingPartitions"]


class MissingPartitions:
    """Collects those of some partitions that raise `Unavailable`, each with the reason.

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
            names = ", ".join(self.reasons)
            what = f"partition {names} is" if len(self.reasons) == 1 else f"partitions {names} are"
            reason = next(iter(self.reasons.values()))
            raise CommandError(f"{what} out of reach, so {consequence}: {reason}")
