"""The copy of a partition: what a run does, in which order, and what a later run continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.cli.sinks.progress_bar import ProgressBar
from ingestd.storage.copy_mark import CopyMark, write_mark

from .digests import Digests, KindDigest
from .journals import JournalDigest, compare_journals, copy_cursors, copy_records, differing_cursors
from .sides import Side
from .states import copy_entries, differences, digest_entries, remove_others

__all__ = ["FORGETTING", "Compared", "Copying", "compare_sides"]

FORGETTING = 86_400_000
"""Milliseconds that a `forget` may take at most, from its erasure record on."""

_TOLD = 100_000  # entries between two lines about the progress
_NAMED = 5  # entries in a message


class Compared(NamedTuple):
    """What both sides have in a partition."""

    name: str
    """The name of the partition, which is empty if it is the only one."""
    journal: JournalDigest
    state: Sequence[KindDigest]
    cursors: int


class Copying:
    """The copy of one partition. `mark` says what earlier runs have done."""

    def __init__(self, source: Side, target: Side, mark: CopyMark, *, quiet: bool) -> None:
        self._source = source
        self._target = target
        self._mark = mark
        self._quiet = quiet

    async def prepare(self) -> None:
        """Copy what there is, also beside the source's daemon. Raises as `finish`."""
        begun_at = times.now()
        await self._copy(self._mark, Digests(begun_at), Digests(begun_at))
        compared_to = self._mark.compared_to
        compared = await compare_journals(self._source, self._target, compared_to, repair=True, serving=True)
        self._mark.compared_to = compared.last
        await write_mark(self._target.store, self._mark)

    async def finish(self) -> Compared:
        """Copy the rest, and compare both sides. Raises `CommandError` if they differ, and `Unavailable`."""
        mark, begun_at = self._mark, times.now()
        ours, theirs = Digests(begun_at), Digests(begun_at)
        await self._copy(mark, ours, theirs)
        # A body that was blanked after its record was copied is found only by comparing all records.
        after = 0 if mark.erased_at > mark.begun_at - FORGETTING else mark.compared_to
        journal = await compare_journals(self._source, self._target, after, repair=True)
        await remove_others(self._source.contents, self._target.contents)
        await _refuse_differences(self._source, self._target, ours, theirs)
        return await _compared(self._target, journal, theirs)

    async def _copy(self, mark: CopyMark, ours: Digests, theirs: Digests) -> None:
        """Copy all that the target lacks, and add the entries to the digests, as `copy_entries` does."""
        source, target = self._source, self._target
        begun_from, last = await target.journal.last(), await source.journal.last()
        bar = ProgressBar(last - begun_from, "records", quiet=self._quiet)

        async def note_erasure(at: int) -> None:
            if at > mark.erased_at:
                mark.erased_at = at
                await write_mark(target.store, mark)

        await copy_records(source, target, lambda position: bar.show(position - begun_from), note_erasure)
        told = 0

        def tell(seen: int, changed: int) -> None:
            nonlocal told
            if seen // _TOLD > told:
                told = seen // _TOLD
                bar.say(f"{seen} entries of state compared, {changed} copied")

        changed = await copy_entries(source.contents, target.contents, ours, theirs, tell)
        place = f"partition {target.name}: " if target.name else ""
        bar.say(f"{place}{changed} entries of state copied")
        await copy_cursors(source, target)


async def compare_sides(source: Side, target: Side) -> Compared:
    """Compare two partitions that no daemon serves from. Raises `CommandError`, which names what differs."""
    begun_at = times.now()
    ours, theirs = Digests(begun_at), Digests(begun_at)
    journal = await compare_journals(source, target, 0)
    await digest_entries(source.contents, ours)
    await digest_entries(target.contents, theirs)
    await _refuse_differences(source, target, ours, theirs)
    return await _compared(target, journal, theirs)


async def _refuse_differences(source: Side, target: Side, ours: Digests, theirs: Digests) -> None:
    kinds = ours.differing(theirs, times.now())
    if kinds:
        named = []
        async for each in differences(source.contents, target.contents):
            named.append(f"{each.key} {each.what}")
            if len(named) == _NAMED:
                break
        which = f": {', '.join(named)}" if named else ""
        raise CommandError(f"{_copy(target)} differs from the source in entries of {', '.join(kinds)}{which}")
    if cursors := await differing_cursors(source, target):
        raise CommandError(f"{_copy(target)} differs from the source in the cursors of {', '.join(cursors)}")


async def _compared(target: Side, journal: JournalDigest, state: Digests) -> Compared:
    return Compared(target.name, journal, [*state.of_kinds(times.now())], len(await target.journal.cursors()))


def _copy(target: Side) -> str:
    return f"partition {target.name} of the copy" if target.name else "the copy"
