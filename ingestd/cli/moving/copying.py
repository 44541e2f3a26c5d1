"""The copy of a store: what a run does, in which order, and what a later run continues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.cli.sinks.progress_bar import ProgressBar
from ingestd.storage.copy_mark import CopyMark, clear_mark, read_mark, write_mark

from .digests import Digests, KindDigest
from .journals import JournalDigest, compare_journals, copy_cursors, copy_records, differing_cursors
from .sides import Side
from .states import copy_entries, differences, digest_entries, remove_others

__all__ = ["Compared", "Copying", "compare_sides"]

_FORGETTING = 86_400_000  # milliseconds that a `forget` may take at most, from its erasure record on
_TOLD = 100_000  # entries between two lines about the progress
_NAMED = 5  # entries in a message


class Compared(NamedTuple):
    """What both sides have."""

    journal: JournalDigest
    state: Sequence[KindDigest]
    cursors: int


class Copying:
    """A run of a copy. `source_is_idle` tells whether no daemon serves from the source."""

    def __init__(
        self, source: Side, target: Side, source_is_idle: Callable[[], Awaitable[bool]], *, quiet: bool
    ) -> None:
        self._source = source
        self._target = target
        self._source_is_idle = source_is_idle
        self._quiet = quiet

    async def prepare(self) -> CopyMark:
        """Copy what there is, also beside the source's daemon. The copy stays unfinished. Raises as `finish`."""
        mark = await self._begin()
        await self._copy(mark, Digests(times.now()))
        compared = await compare_journals(self._source, self._target, mark.compared_to, repair=True, serving=True)
        mark.compared_to = compared.last
        await write_mark(self._target.store, mark)
        return mark

    async def finish(self) -> Compared:
        """Copy the rest, compare both sides, and end the copy.

        Raises `CommandError` if the sides differ, or if the target has other data, and `Unavailable`. The next run
        continues then.
        """
        mark = await self._begin()
        begun_at = times.now()
        ours, theirs = Digests(begun_at), Digests(begun_at)
        await self._copy(mark, ours)
        # A body that was blanked after its record was copied is found only by comparing all records.
        after = 0 if mark.erased_at > mark.begun_at - _FORGETTING else mark.compared_to
        journal = await compare_journals(self._source, self._target, after, repair=True)
        await digest_entries(self._target.contents, theirs)
        if ours.differing(theirs, times.now()):
            theirs = Digests(begun_at)
            await remove_others(self._source.contents, self._target.contents)
            await digest_entries(self._target.contents, theirs)
        await _refuse_differences(self._source, self._target, ours, theirs)
        if not await self._source_is_idle() or await self._source.journal.last() != journal.last:
            raise CommandError(f"a daemon has served from {self._source.url} meanwhile; stop it, and run this again")
        await clear_mark(self._target.store)
        return await _compared(self._target, journal, theirs)

    async def _begin(self) -> CopyMark:
        """The mark of an earlier run, or a new one in an empty target."""
        source, target = self._source, self._target
        if await read_mark(source.store) is not None:
            raise CommandError(f"{source.url} is itself an unfinished copy; finish it first")
        if source.store.loss is not None:
            raise CommandError(f"{source.url}: {source.store.loss}; run `ingestd store acknowledge-loss` there first")
        if await _is_empty(source):
            raise CommandError(f"{source.url} is empty, so there is nothing to copy")
        mark = await read_mark(target.store)
        if mark is None:
            if not await _is_empty(target):
                raise CommandError(f"{target.url} has data already, which a copy would mix with; name an empty store")
            mark = CopyMark(source.url, times.now())
            await write_mark(target.store, mark)
        elif mark.source != source.url:
            raise CommandError(f"{target.url} is an unfinished copy of {mark.source}, not of {source.url}")
        return mark

    async def _copy(self, mark: CopyMark, digests: Digests) -> None:
        """Copy all that the target lacks, and add the source's entries to the digests."""
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

        changed = await copy_entries(source.contents, target.contents, digests, tell)
        bar.say(f"{changed} entries of state copied")
        await copy_cursors(source, target)


async def compare_sides(source: Side, target: Side) -> Compared:
    """Compare two stores that no daemon serves from. Raises `CommandError`, which names what differs."""
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
        raise CommandError(f"the copy differs from the source in entries of {', '.join(kinds)}{which}")
    if cursors := await differing_cursors(source, target):
        raise CommandError(f"the copy differs from the source in the cursors of {', '.join(cursors)}")


async def _compared(target: Side, journal: JournalDigest, state: Digests) -> Compared:
    return Compared(journal, [*state.of_kinds(times.now())], len(await target.journal.cursors()))


async def _is_empty(side: Side) -> bool:
    if await side.journal.last() or await side.journal.cursors():
        return False
    async for some in side.contents.entries():
        if some:
            return False
    return True
