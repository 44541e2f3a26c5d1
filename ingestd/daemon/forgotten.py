"""Drops texts of people from the daemon's memory after `ingestd forget`, which another process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.errors import Unavailable
from ingestd.consumers.erasures import last_erasure
from ingestd.consumers.group import Consumers
from ingestd.consumers.looks import seconds_between_looks
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.http.operators import OperatorsPart
from ingestd.observability.logs import RecentLines

__all__ = ["Forgotten"]

_LOOK = 1.0  # seconds between two looks at a partition
_MOST_LOOK = 10.0  # the same at most, with many partitions


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
        lines: RecentLines,
    ) -> None:
        """`operators` may get parts later."""
        self._parts = [*zip(partitions, consumers.groups, strict=True)]
        self._operators = operators
        self._lines = lines
        self._known: dict[str, str | None] = {}
        """The last erasure of each partition, without those that could not be read yet."""

    async def follow(self) -> None:
        await asyncio.gather(*(self._look(*part) for part in self._parts))
        pause = seconds_between_looks(_LOOK, len(self._parts), _MOST_LOOK)
        # One after the other, but one that is away holds up no other.
        await asyncio.gather(*(self._follow(number, pause) for number in range(len(self._parts))))

    async def _follow(self, number: int, pause: float) -> None:
        await asyncio.sleep(pause * number / len(self._parts))
        while True:
            await self._look(*self._parts[number])
            await asyncio.sleep(pause)

    async def _look(self, partition: Partition, group: Consumers) -> None:
        with suppress(Unavailable):  # it stays in memory as long as the store, which also has it
            erasure = await last_erasure(partition.store.begin(times.now()))
            if self._known.setdefault(partition.name, erasure) == erasure or erasure is None:  # None: it has ended
                return
            self._known[partition.name] = erasure
            group.person_forgotten()
            for part in self._operators:
                part.forget()
            self._lines.forget()
