"""The copy of a store to one with as many partitions, and the marks from which a later run of any copy continues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.hooks.loader import Plugins
from ingestd.storage.copy_mark import CopyMark, read_mark, write_mark
from ingestd.storage.placements import read_map, unfinished

from ..sinks.progress_bar import ProgressBar
from .journals import JournalDigest, compare_journals, copy_cursors, copy_records, differing_cursors
from .ledger import KindDigest, Ledger
from .sides import Side
from .states import StateCopy, refuse_differences, verified

__all__ = ["Compared", "StoreCopy", "begin_marks", "compare_sides", "end_copy", "may_be_blanked", "refuse_source"]

_FORGETTING = 86_400_000  # milliseconds that a `forget` may take at most, from its erasure record on


class Compared(NamedTuple):
    """What both sides have in a partition."""

    name: str
    """The name of the partition, which is empty if it is the only one."""
    journal: JournalDigest
    state: Sequence[KindDigest]
    cursors: int


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
            compared = await compare_journals(source, target, mark.compared_to, repair=True, serving=True)
            mark.compared_to = compared.last
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
                journal = await compare_journals(source, target, after, repair=True)
                compared.append(await _compared(source, target, journal, ledger, copying=True))
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

        await copy_records(source, target, lambda position: bar.show(position - begun_from), note_erasure)
        state = StateCopy([source], [target], None, self._plugins, ledger, say=bar.say)
        await state.run(spread=False)
        place = f"partition {target.name}: " if target.name else ""
        bar.say(f"{place}{state.changed} entries of state copied")
        await copy_cursors(source, target)


async def compare_sides(source: Side, target: Side, plugins: Plugins) -> Compared:
    """Compare two partitions that no daemon serves from. Raises `CommandError`, which names what differs."""
    journal = await compare_journals(source, target, 0)
    with closing(Ledger()) as ledger:
        await StateCopy([source], (), None, plugins, ledger).run(spread=False)
        return await _compared(source, target, journal, ledger, copying=False)


async def _compared(source: Side, target: Side, journal: JournalDigest, ledger: Ledger, *, copying: bool) -> Compared:
    copy = f"partition {target.name} of the copy" if target.name else "the copy"
    (state,), differences = await verified([target], ledger, remove=copying)
    refuse_differences(differences, copy)
    if cursors := await differing_cursors(source, target):
        raise CommandError(f"{copy} differs from the source in the cursors of {', '.join(cursors)}")
    return Compared(target.name, journal, state, len(await target.journal.cursors()))


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
