"""The consumers of a daemon over all partitions of the store: each runs once in every partition."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.consumer import Consumer
from ingestd.api.errors import Unavailable, reason_of

from .failure_log import FailureLogs
from .group import Consumers, Died, log_left
from .runner import Runner
from .status import ConsumerTotals

__all__ = ["PartitionConsumers"]

_log = logging.getLogger("ingestd.consumers")

_T = TypeVar("_T")


class PartitionConsumers:
    """The consumers of each partition, which start, change and stop together. `Consumers` explains the arguments.

    A partition that is away holds up no other. Its consumers begin once it is back.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        consumers: Iterable[Consumer],
        *,
        died: Died,
        now: Callable[[], int] = times.now,
        forced: asyncio.Event | None = None,
        give_way: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises `ConfigError` if a consumer cannot run in several partitions."""
        self._partitions = partitions
        self._failure_logs = FailureLogs()
        registered = [*consumers]
        self.groups = [
            Consumers(
                partition.journal,
                partition.store,
                _divide(registered, partition),
                died=died,
                now=now,
                forced=forced,
                give_way=give_way,
                partition=partition.name,
                partitions=len(partitions),
                failure_logs=self._failure_logs,
            )
            for partition in partitions
        ]
        """The consumers of each partition."""

    @property
    def statuses(self) -> tuple[ConsumerTotals, ...]:
        """The status of each consumer, in their order."""
        return tuple(map(ConsumerTotals, zip(*(group.statuses for group in self.groups), strict=True)))

    def of(self, name: str) -> Sequence[Consumer]:
        """The consumers of that name, one for each partition."""
        return [group.consumer(name) for group in self.groups]

    async def start(self) -> None:
        """Return once every consumer has a durable cursor in every partition that is not away.

        Raises `Unavailable` if all partitions are.
        """
        await self._in_each([group.ensure_cursors() for group in self.groups])
        for group in self.groups:
            group.start_tasks()

    async def prepare_runners(
        self, consumers: Iterable[Consumer], leaving: Collection[str] = ()
    ) -> Sequence[Sequence[Runner]]:
        """Create durable cursors for further consumers, and return their runners for `exchange`.

        `leaving` names the consumers that `exchange` will end. Raises `ConfigError` for a name that is taken, and
        `Unavailable` if all partitions are away.
        """
        coming = [*consumers]
        for each in coming:
            self._failure_logs.pop(each.name, None)
        runners = [
            group.make_runners(_divide(coming, partition), leaving)
            for group, partition in zip(self.groups, self._partitions, strict=True)
        ]
        await self._in_each([group.ensure_cursors(some) for group, some in zip(self.groups, runners, strict=True)])
        return runners

    async def exchange(self, leaving: Collection[str], coming: Sequence[Sequence[Runner]], limit: float) -> None:
        """End some consumers and start others, which may continue from the same cursors. All others keep running.

        A consumer ends after its present step, or after `limit` seconds.
        """
        groups = zip(self.groups, coming, strict=True)
        await asyncio.gather(*(group.exchange(leaving, some, limit) for group, some in groups))

    async def stop(self, limit: float) -> dict[str, int]:
        """Let every consumer catch up for at most `limit` seconds, then end and close all of them.

        Return the number of records left for the next start, by consumer, without consumers that have none.
        """
        left: Counter[str] = Counter()
        for each in await asyncio.gather(*(group.stop(limit) for group in self.groups)):
            left.update(each)
        if len(self.groups) > 1:
            log_left(left)
        return dict(left)

    async def _in_each(self, work: Sequence[Awaitable[None]]) -> None:
        """Do work in all partitions at once, without those that are away. Raises `Unavailable` if all are."""
        results = await asyncio.gather(*work, return_exceptions=True)
        failed = {
            partition.name: result
            for partition, result in zip(self._partitions, results, strict=True)
            if isinstance(result, BaseException)
        }
        for error in failed.values():
            if not isinstance(error, Unavailable) or len(failed) == len(self._partitions):
                raise error
        if failed:
            _log.warning(
                "%d of %d partitions are out of reach: %s; their consumers begin later: %s",
                len(failed), len(results), ", ".join(failed), reason_of(next(iter(failed.values()))),
            )  # fmt: skip


def _divide(consumers: Iterable[Consumer], partition: Partition) -> list[Consumer]:
    return [each.for_partition(partition.name) if partition.name else each for each in consumers]
