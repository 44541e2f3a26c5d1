"""Retention in all partitions of the store, and the size of all their journals together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ingestd.api import times
from ingestd.api.backend import Partition, describe_partition
from ingestd.api.errors import Unavailable
from ingestd.api.store import Store
from ingestd.config import JournalOptions
from ingestd.consumers.partitions import PartitionConsumers

from .retention import Retention

__all__ = ["Retentions"]


class Retentions:
    """Applies the limits of `[journal]` to the journal of each partition. The sizes below are sums over all of them."""

    def __init__(self, parts: Sequence[Retention]) -> None:
        """`parts` has the retention of each partition."""
        self._parts = parts

    @classmethod
    def of(
        cls,
        partitions: Sequence[Partition],
        options: JournalOptions,
        consumers: PartitionConsumers,
        *,
        refuse: Sequence[Callable[[str | None], None]],
    ) -> Retentions:
        """`refuse` has a function for each partition, as `Retention` needs it."""
        return cls(
            [
                Retention(
                    partition.journal,
                    options,
                    group,
                    refuse=each,
                    now=partial(_now, partition.store),
                    place=partial(_place, partition),
                    partitions=len(partitions),
                )
                for partition, group, each in zip(partitions, consumers.groups, refuse, strict=True)
            ]
        )

    @property
    def problems(self) -> Sequence[str | None]:
        """Why events are refused in each partition; None where they are accepted."""
        return [part.problem for part in self._parts]

    @property
    def records(self) -> int:
        return sum(part.records for part in self._parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self._parts)

    @property
    def max_bytes(self) -> float:
        """`max_size` for each partition, or infinity without it."""
        return sum(part.max_bytes for part in self._parts)

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest record, or 0 if all journals are empty."""
        return max(part.oldest_seconds for part in self._parts)

    @property
    def removed(self) -> Mapping[str, int]:
        """The number of records removed since the start of the daemon, by reason."""
        removed: Counter[str] = Counter()
        for part in self._parts:
            removed.update(part.removed)
        return removed

    @property
    def lost(self) -> Iterable[tuple[str, int]]:
        """The name of each consumer, and the number of records that were removed before it read them."""
        lost: dict[str, int] = {}
        for part in self._parts:
            for name, count in part.lost:
                lost[name] = lost.get(name, 0) + count
        return lost.items()

    def apply_options(self, options: JournalOptions) -> None:
        """Apply these options from the next step on."""
        for part in self._parts:
            part.apply_options(options)

    async def start(self) -> None:
        """Measure the journals for the first time. Raises `Unavailable` if all partitions are out of reach.

        A partition that is out of reach refuses events until its journal is measured.
        """
        failures = await asyncio.gather(*map(_start, self._parts))
        if None not in failures:
            raise next(failure for failure in failures if failure is not None)
        for part, failure in zip(self._parts, failures, strict=True):
            if failure is not None:
                part.begin_later()

    async def run(self) -> None:
        """Keep the journals within their limits while the daemon runs."""
        await asyncio.gather(*(part.run() for part in self._parts))


def _place(partition: Partition) -> str:
    return describe_partition(partition.name, partition.store.tenants)


def _now(store: Store) -> int:
    """By the earlier of the daemon's clock and the clock of the store's server.

    A daemon that starts with a clock that is ahead would remove the journal of all daemons.
    """
    return times.now() + min(0, store.clock_ahead)


async def _start(part: Retention) -> Unavailable | None:
    try:
        await part.start()
    except Unavailable as error:
        return error
    return None
