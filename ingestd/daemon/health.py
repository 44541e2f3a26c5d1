"""Whether the daemon can store events, in all partitions or in some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingestd.api.backend import Partition, describe_partition
from ingestd.storage.retentions import Retentions
from ingestd.storage.store_loss import LossRecovery

__all__ = ["Health"]

_MOST_NAMES = 8  # of partitions in one text


class Health:
    """Each text names a cause for operators.

    A daemon is ready while a partition can store events. With several partitions, the tenants of the others go on, so a
    load balancer must not take the daemon out of service for one of them.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        losses: Sequence[LossRecovery],
        retentions: Retentions,
        wrong_clock: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`wrong_clock` returns what is wrong with a clock, or None."""
        self._partitions = partitions
        self._losses = losses
        self._retentions = retentions
        self._wrong_clock = wrong_clock

    def problem(self) -> str | None:
        """Why the daemon is not ready; None if it is."""
        problems = self._problems()
        if len(problems) < len(self._partitions):
            first = self._losses[0]  # the first partition has the keys, which all tenants need
            return f"{first.place}: {first.problem}" if first.problem else None
        return self._text(problems)

    def remark(self) -> str | None:
        """What is wrong although the daemon is ready: partitions that cannot store events, or a clock. Or None."""
        problems = self._problems()
        return self._text(problems) if 0 < len(problems) < len(self._partitions) else self._wrong_clock()

    def able(self) -> float:
        """The part of the partitions that can store events durably, from 0 to 1."""
        full = self._retentions.problems
        unable = sum(bool(each.problem() or full[at]) for at, each in enumerate(self._partitions))
        return 1 - unable / len(self._partitions)

    def _problems(self) -> Mapping[str, str]:
        """The problem of each partition that has one, by name."""
        parts = zip(self._partitions, self._losses, self._retentions.problems, strict=True)
        problems = {each.name: each.problem() or loss.problem or full for each, loss, full in parts}
        return {name: problem for name, problem in problems.items() if problem is not None}

    def _text(self, problems: Mapping[str, str]) -> str:
        first = next(iter(problems.values()))
        if len(self._partitions) == 1:
            return first
        some = [each for each in self._partitions if each.name in problems]
        shown = ", ".join(describe_partition(each.name, each.store.tenants) for each in some[:_MOST_NAMES])
        shown += " …" if len(some) > _MOST_NAMES else ""
        return f"{len(some)} of {len(self._partitions)} partitions have a problem: {shown}: {first}"
