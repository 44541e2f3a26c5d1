"""The copy of a whole store, partition by partition, and the marks that a later run continues from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.storage.copy_mark import CopyMark, clear_mark, read_mark, write_mark
from ingestd.storage.placements import read_map, unfinished

from .copying import Compared, Copying
from .sides import Side

__all__ = ["StoreCopy", "begin_marks", "refuse_source"]


class StoreCopy:
    """A run of a copy. The partitions of source and target correspond, in their order.

    The first partition is marked first, and its mark is removed last. A daemon looks only at this mark.
    """

    def __init__(self, source: Sequence[Side], target: Sequence[Side], *, quiet: bool) -> None:
        self._source = source
        self._target = target
        self._quiet = quiet

    async def prepare(self) -> None:
        """Copy what there is, also beside the source's daemon. The copy stays unfinished. Raises as `finish`."""
        for copying in await self._begin():
            await copying.prepare()

    async def finish(self, source_is_unchanged: Callable[[], Awaitable[bool]]) -> Sequence[Compared]:
        """Copy the rest, compare both sides, and end the copy.

        Raises `CommandError` if the sides differ, or if the target has other data, and `Unavailable`. The next run
        continues then. `source_is_unchanged` tells whether no daemon has served from the source meanwhile.
        """
        compared = [await copying.finish() for copying in await self._begin()]
        if not await source_is_unchanged():
            raise CommandError(f"a daemon has served from {self._source[0].url} meanwhile; stop it, and run this again")
        for target in reversed(self._target):
            await clear_mark(target.store)
        return compared

    async def _begin(self) -> list[Copying]:
        marks = await begin_marks(self._source, self._target, lambda: CopyMark(self._source[0].url, times.now()))
        return [
            Copying(*each, quiet=self._quiet) for each in zip(self._source, self._target, marks, strict=True)
        ]  # fmt: skip


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
