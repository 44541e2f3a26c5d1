"""Drops texts of people from the daemon's memory after `ingestd forget`, which another process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from functools import partial

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.errors import Unavailable
from ingestd.consumers.erasures import last_erasure
from ingestd.consumers.group import Consumers
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.http.operators import OperatorsPart
from ingestd.support.periodic import TIMING, every, seconds_between_looks

__all__ = ["Forgotten"]

_MOST = 10.0  # seconds between two looks at one of many partitions


class Forgotten:
    """Follows the erasures of each partition.

    The memory has live events, the last lines of the log, the last errors of consumers, and records in their hands.
    Nobody can tell which of the texts are of the person, so all go.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        consumers: PartitionConsumers,
        operators: Sequence[OperatorsPart],
    ) -> None:
        """`operators` may get parts later."""
        self._parts = [*zip(partitions, consumers.groups, strict=True)]
        self._operators = operators
        self._known: dict[str, str | None] = {}
        """The last erasure of each partition. None if there was none, or if it could not be read."""
        self._versions: dict[str, Hashable] = {}
        """The version of each partition's store when its erasure was read."""

    async def follow(self) -> None:
        await asyncio.gather(*(self._look_for_erasure(*part) for part in self._parts))
        count = len(self._parts)
        pause = seconds_between_looks(TIMING.erasures, count, _MOST)
        # One after the other, but one that is away holds up no other.
        works = (
            every("erasures", partial(self._look_for_erasure, *part), first=pause * number / count, pause=pause)
            for number, part in enumerate(self._parts)
        )
        await asyncio.gather(*works)

    async def _look_for_erasure(self, partition: Partition, group: Consumers) -> None:
        version = partition.store.version
        if version is not None and version == self._versions.get(partition.name):
            return
        try:
            erasure = await last_erasure(partition.store.begin(times.now()))
            if self._known.setdefault(partition.name, erasure) != erasure and erasure is not None:  # None: ended
                await partition.journal.last()  # tells it to read blanked records again, instead of from memory
                self._known[partition.name] = erasure
                group.person_forgotten()
                for part in self._operators:
                    part.forget()
            self._versions[partition.name] = version
        except Unavailable:  # it stays in memory as long as the store, which also has it
            # After a start without the store, its first mark may be newer than records that were read meanwhile.
            self._known.setdefault(partition.name, None)
