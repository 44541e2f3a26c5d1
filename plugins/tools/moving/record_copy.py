"""Records from all partitions of a source to the partitions of their tenants, each once, whenever a run is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.storage.copy_mark import CopyMark, Regrouping, put_mark

from ..forget.traces import ERASURE
from ..journal_reading import merged, positions_of, records_of
from .sides import Side

__all__ = ["Cut", "RecordCopy", "cuts_of", "in_order", "is_within", "lowest", "regrouping_of", "spans_of"]


class Cut(NamedTuple):
    """The positions of a consumer in the partitions of the source, in their order."""

    consumer: str
    positions: list[int]


async def cuts_of(source: Sequence[Side]) -> list[Cut]:
    """The cuts of all consumers, by name. Raises `CommandError` if one has no cursor in a partition, `Unavailable`."""
    cursors, bounds = [], []
    for side in source:
        extent = await side.journal.extent()
        cursors.append(await positions_of(side.journal))
        bounds.append((extent.first - 1, extent.last))
    found = []
    for name in sorted({name for some in cursors for name in some}):
        positions = []
        for side, some, (lowest_, last) in zip(source, cursors, bounds, strict=True):
            if name not in some and last:
                raise CommandError(f"{name} has no cursor in {side}; start the daemon once, which gives it one")
            positions.append(min(max(some.get(name, 0), lowest_), last))
        found.append(Cut(name, positions))
    return found


def is_within(positions: Sequence[int], others: Sequence[int]) -> bool:
    """Whether no position is higher than the other one of its partition."""
    return all(position <= other for position, other in zip(positions, others, strict=True))


def lowest(cuts: Sequence[Cut], otherwise: Sequence[int]) -> list[int]:
    """The positions up to which all consumers have read. `otherwise` applies if there are no consumers."""
    return [min(each) for each in zip(*[cut.positions for cut in cuts], strict=True)] if cuts else [*otherwise]


def in_order(cuts: Sequence[Cut]) -> list[Cut]:
    """The cuts in an order in which each is within the next one. Raises `CommandError` if there is none.

    There is one if the source has one partition, or if only one consumer lags behind.
    """
    ordered = sorted(cuts, key=lambda cut: sum(cut.positions))
    for cut, following in pairwise(ordered):
        if not is_within(cut.positions, following.positions):
            raise CommandError(
                f"{cut.consumer} lags behind {following.consumer} in one partition and is ahead of it in another one,"
                " so no order of the records suits both; start the daemon, and let one of them catch up"
            )
    return ordered


_WAITING = 500  # records of one commit
_WAITING_BYTES = 1 << 20


def spans_of(sides: Sequence[Side], after: Sequence[int], upto: Sequence[int]) -> list[AsyncIterator[Record]]:
    """The records of each partition after a position and up to another one."""
    return [records_of(side.journal, *span) for side, *span in zip(sides, after, upto, strict=True)]


class RecordCopy:
    """Copies records. A commit has the records of one target and its mark, which tells how far it has come."""

    def __init__(
        self,
        source: Sequence[Side],
        target: Sequence[Side],
        marks: Sequence[CopyMark],
        index_of: Callable[[Record], int],
        copied: Callable[[int], None],
    ) -> None:
        """`index_of` tells the target of a record. `copied` gets the number of records that were read."""
        self._source = source
        self._target = target
        self._marks = marks
        self._index_of = index_of
        self._copied = copied
        self._read = 0
        self._waiting: list[list[Record]] = [[] for _ in target]
        self._bytes = [0] * len(target)

    async def continue_journals(self) -> None:
        """Let each journal of the target continue after the position in its mark. Raises `Unavailable`."""
        for side, mark in zip(self._target, self._marks, strict=True):
            begin = regrouping_of(mark).begin
            if await side.journal.last() < begin:
                await side.contents.continue_after(begin)

    async def copy_to(self, positions: Sequence[int]) -> None:
        """Copy the records up to a position of each partition of the source. Raises `CommandError`, `Unavailable`."""
        done = [regrouping_of(mark).copied for mark in self._marks]
        reached = [min(some) for some in zip(*done, strict=True)]
        async for origin, record in merged(spans_of(self._source, reached, positions)):
            index = self._index_of(record)
            reached[origin] = record.position
            if record.position > regrouping_of(self._marks[index]).copied[origin]:
                self._waiting[index].append(record)
                self._bytes[index] += len(record.body)
                if record.type == ERASURE:
                    self._marks[index].erased_at = max(self._marks[index].erased_at, record.at)
                if len(self._waiting[index]) == _WAITING or self._bytes[index] > _WAITING_BYTES:
                    await self._commit(index, reached)
            self._read += 1
            self._copied(self._read)
        for index, mark in enumerate(self._marks):
            if self._waiting[index] or not is_within(positions, regrouping_of(mark).copied):
                await self._commit(index, positions)

    async def _commit(self, index: int, reached: Sequence[int]) -> None:
        side, mark, records = self._target[index], self._marks[index], self._waiting[index]
        mine = regrouping_of(mark)
        mine.copied = [max(each) for each in zip(mine.copied, reached, strict=True)]
        state = side.store.begin(times.now())
        await put_mark(state, mark)
        expected = max(await side.journal.last(), mine.begin) + len(records)
        last = await side.journal.commit(records, state)
        if records and last != expected:
            raise CommandError(f"another program writes to {side}; stop it, and begin with an empty target")
        self._waiting[index], self._bytes[index] = [], 0

    async def set_cursors(self, cut: Cut) -> None:
        """Set a consumer's cursors to the ends of the targets, which have the records up to its cut, and no others.

        Raises `CommandError` if a target has further records, `Unavailable`.
        """
        for side, mark in zip(self._target, self._marks, strict=True):
            mine = regrouping_of(mark)
            if mine.cursors.get(cut.consumer) == cut.positions:
                continue
            if not is_within(mine.copied, cut.positions):
                raise CommandError(
                    f"{side} has records that {cut.consumer} has not read; start the daemon, and let it catch up"
                )
            cursor = await side.journal.acquire_cursor(cut.consumer, "beginning")
            mine.cursors[cut.consumer] = cut.positions
            state = side.store.begin(times.now())
            await put_mark(state, mark)
            end = max(await side.journal.last(), mine.begin)
            await side.journal.commit([], state, cursor._replace(position=end))
            await side.journal.release(cursor)


def regrouping_of(mark: CopyMark) -> Regrouping:
    assert mark.regrouping is not None
    return mark.regrouping
