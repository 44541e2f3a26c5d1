"""The copy of a store to another number of partitions: each record and entry goes to the partition of its tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial

from ingestd.api import times
from ingestd.api.contents import kind_of
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.delivery.progress import PROGRESS
from ingestd.delivery.sink_consumer import PREFIX
from ingestd.hooks.loader import Plugins
from ingestd.storage.copy_mark import CopyMark, Regrouping, write_mark
from ingestd.storage.placements import index_of_tenant

from ..journal_reading import merged, positions_of
from ..sinks.progress_bar import ProgressBar
from .comparison import Compared, RecordComparison, Span, compare_all, ends_of, firsts_of, moved_tenants, place_of
from .known_keys import HOME, KnownKeys, texts_in
from .ledger import Ledger
from .record_copy import Cut, RecordCopy, cuts_of, in_order, lowest, regrouping_of, spans_of
from .sides import Side
from .sink_shares import SINK_KINDS, refuse_unfinished_work, share_sink
from .states import StateCopy, parts_of
from .store_copy import begin_marks, end_copy, may_be_blanked

__all__ = ["RegroupedCopy", "counts"]

_MARGIN = 1 << 27
"""The positions that the source may still use until the last run of the copy, and those of dead letters.

Touchpoints have room for positions below 2 ** 36, so there may be 500 moves.
"""


class RegroupedCopy:
    """A run of a copy. Records get new positions, which are higher than all of the source.

    So no record has a lower position than before, and no new record gets a position that the state knows already.
    """

    def __init__(self, source: Sequence[Side], target: Sequence[Side], plugins: Plugins, *, quiet: bool) -> None:
        self.unknown: Counter[str] = Counter()
        """The entries that were left out because their tenant is unknown, by kind."""
        self._source = source
        self._target = target
        self._plugins = plugins
        self._quiet = quiet
        self._known = KnownKeys(partial(index_of_tenant, partitions=len(target))) if len(target) > 1 else None
        """A target with one partition needs no search for it."""
        self._marks: list[CopyMark] = []

    def close(self) -> None:
        """Remove the temporary file."""
        if self._known is not None:
            self._known.close()

    async def prepare(self) -> None:
        """Copy the records that all consumers have read, and the state, also beside the source's daemon.

        The copy stays unfinished. Raises as `finish`.
        """
        await self._begin_marks()
        cuts, ends = await cuts_of(self._source), await ends_of(self._source)
        await self._copy_records([Cut("", lowest(cuts, ends))], set_cursors=False)
        with closing(Ledger(SINK_KINDS)) as ledger:
            await self._copy_state(ledger)
        first = regrouping_of(self._marks[0])
        ours, theirs = self._uncompared([*first.copied], await self._target_ends())
        comparison = RecordComparison(self._source, self._target, await moved_tenants(self._source))
        await comparison.compare_beside_daemon(ours, theirs)
        first.compared, first.compared_to = [*ours.upto], [*theirs.upto]
        await write_mark(self._target[0].store, self._marks[0])

    async def finish(
        self, source_is_unchanged: Callable[[], Awaitable[bool]], *, leave_unknown: bool
    ) -> Sequence[Compared]:
        """Copy the rest, compare both sides, and end the copy.

        Raises `CommandError` if the sides differ, if the target has other data, or if the tenant of entries is unknown
        without `leave_unknown`, and `Unavailable`. The next run continues then.
        """
        cuts, ends = in_order(await cuts_of(self._source)), await ends_of(self._source)
        for cut in cuts:
            for side, position in zip(self._source, cut.positions, strict=True):
                await refuse_unfinished_work(side, cut.consumer.removeprefix(PREFIX), position)
        await self._begin_marks()
        first = regrouping_of(self._marks[0])
        if max(ends) + await self._most_letters(cuts) > first.begin:
            raise CommandError(
                f"{self._source[0].url} has too many new records since the copy was begun; begin with an empty target"
            )
        await self._copy_records([*cuts, Cut("", ends)], set_cursors=True)
        with closing(Ledger(SINK_KINDS)) as ledger:
            await self._copy_state(ledger)
            if self.unknown and not leave_unknown:
                raise CommandError(
                    f"the tenant of some entries of state cannot be found ({counts(self.unknown)}), since the records"
                    " that they belong to were removed; add --leave-unknown to leave them out (docs/moving.md)"
                )
            await self._share_sinks(cuts)
            if may_be_blanked(self._marks):
                first.compared = []
            spans = self._uncompared(ends, await self._target_ends())
            compared = await compare_all(self._source, self._target, *spans, ledger, copying=True)
        await end_copy(self._source, self._target, source_is_unchanged)
        return compared

    async def _begin_marks(self) -> None:
        begin = max(await ends_of(self._source)) + _MARGIN

        def make() -> CopyMark:
            return CopyMark(self._source[0].url, times.now(), regrouping=Regrouping(begin, [0] * len(self._source)))

        self._marks = await begin_marks(self._source, self._target, make)

    async def _copy_records(self, cuts: Sequence[Cut], *, set_cursors: bool) -> None:
        """Copy the records up to each cut in turn, and set the cursors of its consumer there."""
        done = [min(each) for each in zip(*[regrouping_of(mark).copied for mark in self._marks], strict=True)]
        if self._known is not None:
            self._known.is_complete = not any(done) and set_cursors
            for index, side in enumerate(self._target):
                async for part in parts_of(side.contents):
                    self._known.keep([entry for entry in part if kind_of(entry.key) not in SINK_KINDS], index)
        begins = map(max, done, [first - 1 for first in await firsts_of(self._source)])
        count = sum(max(0, end - begin) for begin, end in zip(begins, cuts[-1].positions, strict=True))
        bar = ProgressBar(count, "records", quiet=self._quiet)
        run = RecordCopy(self._source, self._target, self._marks, self._learned, bar.show)
        await run.continue_journals()
        for cut in cuts:
            await run.copy_to(cut.positions)
            if set_cursors and cut.consumer:
                await run.set_cursors(cut)
        bar.close()

    def _learned(self, record: Record) -> int:
        """The target of a record, whose texts may be parts of keys."""
        tenant = record.envelope().tenant or ""
        if self._known is None:
            return HOME
        self._known.add(tenant, texts_in(record.decode()))
        return self._known.index_of(tenant)

    async def _copy_state(self, ledger: Ledger) -> None:
        known = self._known
        if known is not None:
            known.add("", [])
            known.moved = {number: tenant for tenant, number in (await moved_tenants(self._source)).items()}
            for side in self._source:
                for tenant, texts in (await self._plugins.hooks.state_parts(side.store)).items():
                    known.add(tenant, texts)
        run = StateCopy(self._source, self._target, known, self._plugins, ledger)
        await run.run(spread=False)
        if run.unknown and known is not None:
            if not known.is_complete:
                await self._learn_all_records()
            ledger.clear()
            run = StateCopy(self._source, self._target, known, self._plugins, ledger)
            await run.run(spread=True)
        self.unknown = run.unknown
        ProgressBar(1, "", quiet=self._quiet).say(f"{run.changed} entries of state copied")

    async def _learn_all_records(self) -> None:
        """Earlier runs have read most records, and their knowledge is gone."""
        ends = await ends_of(self._source)
        async for _, record in merged(spans_of(self._source, [0] * len(ends), ends)):
            self._learned(record)
        if self._known is not None:
            self._known.is_complete = True

    async def _share_sinks(self, cuts: Sequence[Cut]) -> None:
        positions = [await positions_of(side.journal) for side in self._target]
        for cut in cuts:
            if cut.consumer.startswith(PREFIX):
                await share_sink(
                    self._source,
                    self._target,
                    cut,
                    ends=[some[cut.consumer] for some in positions],
                    begin=regrouping_of(self._marks[0]).begin,
                    index_of=lambda record: place_of(record, len(self._target)),
                )

    async def _most_letters(self, cuts: Sequence[Cut]) -> int:
        """No sink has more dead letters than this."""
        most = 0
        for cut in cuts:
            letters = 0
            for side in self._source:
                progress = await PROGRESS.load(side.store.begin(times.now()), cut.consumer.removeprefix(PREFIX))
                letters += 0 if progress is None else progress.letters
            most = max(most, letters)
        return most

    def _uncompared(self, ends: Sequence[int], there: Sequence[int]) -> tuple[Span, Span]:
        """The records of both sides that earlier runs have not compared."""
        first = regrouping_of(self._marks[0])
        if first.compared:
            return Span(first.compared, ends), Span(first.compared_to, there)
        return Span([0] * len(ends), ends), Span([first.begin] * len(there), there)

    async def _target_ends(self) -> list[int]:
        begin = regrouping_of(self._marks[0]).begin
        return [max(begin, end) for end in await ends_of(self._target)]


def counts(unknown: Counter[str]) -> str:
    """The numbers of entries by kind, for a message."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(unknown.items()))
