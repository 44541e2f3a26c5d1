"""The copy of a store to one with as many partitions, and the marks from which a later run of any copy continues.

Records keep their positions, and consumers their cursors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.hooks.loader import Plugins
from ingestd.storage.copy_mark import CopyMark, read_mark, write_mark
from ingestd.storage.placements import read_map, unfinished

from ..forget.traces import ERASURE
from ..sinks.progress_bar import ProgressBar
from .comparison import Compared, RecordComparison, Span, compare_partition, cursors_of, firsts_of
from .ledger import Ledger
from .sides import Side
from .states import StateCopy

__all__ = ["StoreCopy", "begin_marks", "end_copy", "may_be_blanked", "refuse_source", "set_cursors"]

_PAGE = 500  # records of one commit
_TRIMMED = 500  # records that one step removes
_FORGETTING = 86_400_000  # milliseconds that a `forget` may take at most, from its erasure record on


class StoreCopy:
    """A run of a copy. The partitions of source and target correspond, in their order.

    The first partition is marked first, and its mark is removed last. A daemon looks only at this mark.
    """

    def __init__(self, source: Sequence[Side], target: Sequence[Side], plugins: Plugins, *, quiet: bool) -> None:
        self._source = source
        self._target = target
        self._plugins = plugins
        self._quiet = quiet

    async def prepare(self) -> None:
        """Copy what there is, also beside the source's daemon. The copy stays unfinished. Raises as `finish`."""
        for source, target, mark in await self._begin_marks():
            with closing(Ledger()) as ledger:
                await self._copy(source, target, mark, ledger)
            (first,) = await firsts_of([source])
            span = Span([max(mark.compared_to, first - 1)], [await target.journal.last()])
            await RecordComparison([source], [target], ()).compare_beside_daemon(span, span)
            (mark.compared_to,) = span.upto
            await write_mark(target.store, mark)

    async def finish(self, source_is_unchanged: Callable[[], Awaitable[bool]]) -> Sequence[Compared]:
        """Copy the rest, compare both sides, and end the copy.

        Raises `CommandError` if the sides differ, or if the target has other data, and `Unavailable`. The next run
        continues then. `source_is_unchanged` tells whether no daemon has served from the source meanwhile.
        """
        compared = []
        for source, target, mark in await self._begin_marks():
            with closing(Ledger()) as ledger:
                await self._copy(source, target, mark, ledger)
                after = 0 if may_be_blanked([mark]) else mark.compared_to
                compared.append(await compare_partition(source, target, after, ledger, copying=True))
        await end_copy(self._source, self._target, source_is_unchanged)
        return compared

    async def _begin_marks(self) -> list[tuple[Side, Side, CopyMark]]:
        marks = await begin_marks(self._source, self._target, lambda: CopyMark(self._source[0].url, times.now()))
        return [*zip(self._source, self._target, marks, strict=True)]

    async def _copy(self, source: Side, target: Side, mark: CopyMark, ledger: Ledger) -> None:
        """Copy all that a partition of the target lacks. `mark` says what earlier runs have done."""
        begun_from, last = await target.journal.last(), await source.journal.last()
        bar = ProgressBar(last - begun_from, "records", quiet=self._quiet)

        async def note_erasure(at: int) -> None:
            if at > mark.erased_at:
                mark.erased_at = at
                await write_mark(target.store, mark)

        await _copy_records(source, target, lambda position: bar.show(position - begun_from), note_erasure)
        state = StateCopy([source], [target], None, self._plugins, ledger, say=bar.say)
        await state.run(spread=False)
        place = f"partition {target.name}: " if target.name else ""
        bar.say(f"{place}{state.changed} entries of state copied")
        await set_cursors(target, await cursors_of(source.journal))


async def _copy_records(
    source: Side, target: Side, copied: Callable[[int], None], erased: Callable[[int], Awaitable[None]]
) -> None:
    """Copy the records that the target lacks, and remove those that the source has removed.

    `copied` gets the position reached. `erased` gets the time of each erasure (milliseconds), before the record is
    copied. Raises `CommandError`, `Unavailable`.
    """
    extent = await source.journal.extent()
    while (after := await _align(source, target)) < extent.last:
        while after < extent.last:
            records = await source.journal.read(after, _PAGE)
            if not records or records[0].position != after + 1:  # a daemon has trimmed them: align again
                break
            for record in records:
                if record.type == ERASURE:
                    await erased(record.at)
            after = await target.journal.commit(records, target.store.begin(times.now()))
            if after != records[-1].position:
                raise CommandError(f"another program writes to {target}; stop it, and begin with an empty target")
            copied(after)


async def _align(source: Side, target: Side) -> int:
    """Begin the target's journal where the source's begins. Returns the last position of the target."""
    extent, there = await source.journal.extent(), await target.journal.extent()
    if there.last > extent.last:
        raise CommandError(
            f"the journal of {target} ends at {there.last}, after that of {source} at {extent.last}:"
            " it is no copy of it; begin with an empty target"
        )
    while await target.journal.trim(min(extent.first - 1, there.last), _TRIMMED):
        pass
    if there.last >= extent.first - 1:
        return there.last
    await target.contents.continue_after(extent.first - 1)
    return extent.first - 1


async def set_cursors(target: Side, wanted: Mapping[str, int]) -> None:
    """Set the positions of consumers, by name."""
    for name, position in wanted.items():
        cursor = await target.journal.acquire_cursor(name, "beginning")
        if cursor.position != position:
            state = target.store.begin(times.now())
            await target.journal.commit([], state, cursor._replace(position=position))
        await target.journal.release(cursor)


# What copies to any number of partitions share


async def begin_marks(source: Sequence[Side], target: Sequence[Side], make: Callable[[], CopyMark]) -> list[CopyMark]:
    """The marks of an earlier run, or new ones in an empty target. Raises `CommandError`, `Unavailable`."""
    marks = [await read_mark(side.store) for side in target]
    url, wanted = target[0].url, make()
    if not any(marks) and not all([await _is_empty(side) for side in target]):
        raise CommandError(f"{url} has data already, which a copy would mix with; name an empty store")
    for mark in marks:
        if mark is not None and mark.source != wanted.source:
            raise CommandError(f"{url} is an unfinished copy of {mark.source}, not of {wanted.source}")
        if mark is not None and _origins(mark) != _origins(wanted):
            raise CommandError(
                f"{url} is an unfinished copy of {mark.source} when it had another number of partitions;"
                " begin with an empty target"
            )
    begun: list[CopyMark] = []
    for side, found in zip(target, marks, strict=True):
        mark = found
        if mark is None:  # also after a crash while the marks of a complete copy were removed, the first one last
            mark = msgspec.convert(msgspec.to_builtins(begun[0] if begun else wanted), CopyMark)
            await write_mark(side.store, mark)
        begun.append(mark)
    return begun


async def end_copy(
    source: Sequence[Side], target: Sequence[Side], source_is_unchanged: Callable[[], Awaitable[bool]]
) -> None:
    """Remove the marks. Raises `CommandError` if a daemon has served from the source meanwhile, and `Unavailable`."""
    if not await source_is_unchanged():
        raise CommandError(f"a daemon has served from {source[0].url} meanwhile; stop it, and run this again")
    for side in reversed(target):
        await write_mark(side.store, None)


def may_be_blanked(marks: Sequence[CopyMark]) -> bool:
    """Whether a body may have been blanked after its record was copied. Only comparing all records finds it."""
    return max(mark.erased_at for mark in marks) > marks[0].begun_at - _FORGETTING


def _origins(mark: CopyMark) -> int:
    """The number of the source's partitions; 0 if each corresponds to one of the target."""
    return 0 if mark.regrouping is None else len(mark.regrouping.copied)


async def refuse_source(sides: Sequence[Side]) -> None:
    """Raises `CommandError` if a store cannot be copied, because it is empty, incomplete or has lost data."""
    for side in sides:
        if await read_mark(side.store) is not None:
            raise CommandError(f"{side.url} is itself an unfinished copy; finish it first")
    placements = await read_map(sides[0].store.begin(times.now()), len(sides))
    if (problem := unfinished(placements, [side.name for side in sides])) is not None:
        raise CommandError(f"{sides[0].url}: {problem}")
    for side in sides:
        if side.store.loss is not None:
            raise CommandError(f"{side}: {side.store.loss}; run `ingestd store acknowledge-loss` there first")
    if all([await _is_empty(side) for side in sides]):
        raise CommandError(f"{sides[0].url} is empty, so there is nothing to copy")


async def _is_empty(side: Side) -> bool:
    if await side.journal.last() or await side.journal.cursors():
        return False
    async for some in side.contents.entries():
        if some:
            return False
    return True
