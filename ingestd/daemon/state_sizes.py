"""Measures the state of all partitions, and tells plugins and sinks how much of it callers may fill."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from itertools import count

from ingestd.api.backend import Partition
from ingestd.api.errors import Unavailable
from ingestd.api.store import StoreSize
from ingestd.config import Config
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.delivery.sink_consumer import SinkConsumer
from ingestd.storage.retentions import Retentions
from ingestd.storage.split_journal import SplitJournal
from ingestd.support.periodic import TIMING, every, seconds_between_looks

__all__ = ["LETTERS", "VISITORS", "StateSizes", "max_size"]

VISITORS, LETTERS = 0.5, 0.25
"""The shares of profiles by visitors without a link, and of dead letters. What is left is for profiles of users."""
_OF_CAPACITY = 4
_LEAST = 16 << 20
"""A journal may be small because its records go to sinks at once. Profiles need some room nevertheless."""
_MOST = 30.0  # seconds between two looks at one of many partitions
_UNCHANGED = 6  # looks, of which one measures a partition without changes


def max_size(config: Config, size: StoreSize | None, partitions: int) -> float:
    """`[store] max_size` in bytes, for one of several partitions: it bounds what callers choose.

    Unless it is set, it is `[journal] max_size`, and at least 16 MiB. Without that, it is a quarter of the disk or
    memory, or infinity if that is unknown.
    """
    if config.store.max_size is not None:
        return int(config.store.max_size)
    if config.journal.max_size is not None:
        return max(int(config.journal.max_size), _LEAST)
    return size.capacity / _OF_CAPACITY / partitions if size is not None and size.capacity else math.inf


class StateSizes:
    """The sizes are sums over all partitions. A store that does not know its size counts as empty."""

    def __init__(self, partitions: Sequence[Partition], config: Config, consumers: PartitionConsumers) -> None:
        self._partitions = partitions
        self._config = config
        self._consumers = consumers
        self._sizes: list[StoreSize | None] = [None] * len(partitions)
        self._versions: list[Hashable] = [None] * len(partitions)
        """The version of each partition's store when it was measured."""
        self.journals: Retentions | None = None
        """The journals in the same back end, once they are measured."""

    @property
    def state_bytes(self) -> int:
        """What the stores use, without the records of journals in them."""
        used = sum(size.used for size in self._sizes if size is not None)
        apart = any(isinstance(partition.journal, SplitJournal) for partition in self._partitions)
        return used if apart or self.journals is None else max(0, used - self.journals.bytes)

    @property
    def profile_bytes(self) -> float:
        return sum(partition.store.field_bytes for partition in self._partitions)

    @property
    def max_bytes(self) -> float:
        """`max_size` for each partition, or infinity without it."""
        return sum(partition.store.max_size for partition in self._partitions)

    async def start(self) -> None:
        """Look at all partitions within reach, before any event and any record of a sink."""
        await asyncio.gather(*map(self._measure, range(len(self._partitions))))

    async def run(self) -> None:
        """Look again and again while the daemon runs."""
        partitions = len(self._partitions)
        numbers, pause = count(), seconds_between_looks(TIMING.state_sizes, partitions, _MOST) / partitions
        await every("state_sizes", lambda: self._measure_next(next(numbers)), pause=pause)

    async def _measure_next(self, number: int) -> None:
        around, index = divmod(number, len(self._partitions))
        version = self._partitions[index].store.version
        # An event without a record makes no new version, and entries expire without one.
        if version is None or version != self._versions[index] or around % _UNCHANGED == 0:
            await self._measure(index)

    async def _measure(self, index: int) -> None:
        store = self._partitions[index].store
        version = store.version
        with suppress(Unavailable):  # the back end logs its failure, and the next look tries again
            size = self._sizes[index] = await store.size()
            self._versions[index] = version
            store.field_bytes = 0 if size is None else size.fields
            self._share_out(index)

    def apply_options(self, config: Config) -> None:
        """Apply these options at once."""
        self._config = config
        self.share_out()

    def share_out(self) -> None:
        """Tell all stores and sinks their bounds, for example after an exchange of sinks."""
        for index in range(len(self._partitions)):
            self._share_out(index)

    def _share_out(self, index: int) -> None:
        most = max_size(self._config, self._sizes[index], len(self._partitions))
        self._partitions[index].store.max_size = most
        sinks = [each for each in self._consumers.groups[index].consumers if isinstance(each, SinkConsumer)]
        for sink in sinks:
            sink.max_letter_bytes = most * LETTERS / len(sinks)
