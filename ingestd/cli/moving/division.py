"""The division of a store with one partition: the data of each partition of the target, in temporary files."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ingestd.api import times
from ingestd.api.contents import Entry, kind_of
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.delivery.dead_letters import DeadLetter
from ingestd.delivery.sink_consumer import PREFIX
from ingestd.hooks.loader import Plugins

from .journals import append_records, records_of, set_cursors
from .known_keys import KnownKeys, texts_in
from .sides import Side
from .sink_shares import SINK_KINDS, divide_sink, letters_of, refuse_unfinished_work
from .states import parts_of

__all__ = ["Division", "divided"]

_WAITING = 500  # records or entries that wait for a partition
_SOON = 2 * 86_400_000  # milliseconds


@asynccontextmanager
async def divided(source: Side, target: Sequence[Side], plugins: Plugins) -> AsyncIterator[Division]:
    """Divide a store as the target's partitions need it. Raises `CommandError`, `Unavailable`."""
    if "sqlite" not in plugins.stores:
        raise CommandError("dividing a store needs the plugin sqlite for temporary files; enable it")
    with TemporaryDirectory(prefix="ingestd-copy-") as folder:
        async with AsyncExitStack() as stack:
            parts = []
            for each in target:
                backend = plugins.stores["sqlite"](f"sqlite:{folder}/{each.name}.db", Path(folder))
                await backend.open(serving=False)
                stack.push_async_callback(backend.close)
                contents = backend.contents
                assert contents is not None
                parts.append(Side(source.url, each.name, backend.store, backend.journal, contents))
            known = KnownKeys(len(parts))
            stack.callback(known.close)
            division = Division(source, parts, known)
            await division.run(plugins)
            yield division


class Division:
    """Each tenant's records keep their order, and get new positions. Every partition ends where the source ends.

    So no record gets a lower position than before, and no new record gets a position that the state knows already.
    """

    def __init__(self, source: Side, parts: Sequence[Side], known: KnownKeys) -> None:
        self.parts = parts
        self.unknown: Counter[str] = Counter()
        """The entries that were left out because their tenant is unknown, by kind."""
        self._source = source
        self._known = known
        self._cursors: dict[str, int] = {}
        self._before: dict[int, list[int]] = {}
        """By position of a cursor: how many records up to there each partition has."""
        self._letters: list[int] = []
        """The positions of all records with dead letters, in order."""
        self._letter_ranks: dict[int, int] = {}
        """By position of such a record: how many records its partition has up to there."""
        self._counts = [0] * len(parts)
        """The records of each partition."""
        self._first = self._last = 0

    async def run(self, plugins: Plugins) -> None:
        extent = await self._source.journal.extent()
        self._first, self._last = extent.first, extent.last
        self._cursors = {
            each.name: max(each.position, self._first - 1) for each in await self._source.journal.cursors()
        }
        sinks = [name.removeprefix(PREFIX) for name in self._cursors if name.startswith(PREFIX)]
        for sink in sinks:
            await refuse_unfinished_work(self._source, sink, self._cursors[PREFIX + sink])
        await self._count(sinks)
        await self._divide_records()
        for index, part in enumerate(self.parts):
            await set_cursors(part, {name: self._place(position, index) for name, position in self._cursors.items()})
        self._known.add("", [])
        for tenant, texts in (await plugins.hooks.state_parts(self._source.store)).items():
            self._known.add(tenant, texts)
        await self._divide_entries()
        for sink in sinks:
            old = self._cursors[PREFIX + sink]
            moved = [self._place(old, index) - old for index in range(len(self.parts))]
            await divide_sink(self._source, self.parts, sink, moved, self._place_of_letter)

    async def _count(self, sinks: Sequence[str]) -> None:
        """Count the records of each partition, and learn the tenants and the texts that keys may have."""
        letters = [each.position for sink in sinks for each in await letters_of(self._source, sink)]
        self._letters = sorted({*letters})
        looked_at = sorted({*self._cursors.values()})
        counts = self._counts
        async for record in records_of(self._source.journal, self._first - 1, self._last):
            while looked_at and looked_at[0] < record.position:
                self._before[looked_at.pop(0)] = [*counts]
            index = self._index_of(record)
            counts[index] += 1
            if self._is_letter(record.position):
                self._letter_ranks[record.position] = counts[index]
            self._known.add(record.envelope().tenant or "", texts_in(record.decode()))
        for position in looked_at:
            self._before[position] = [*counts]

    def _is_letter(self, position: int) -> bool:
        index = bisect_left(self._letters, position)
        return index < len(self._letters) and self._letters[index] == position

    def _index_of(self, record: Record) -> int:
        return self._known.index_of(record.envelope().tenant)

    def _begin(self, index: int) -> int:
        """The position before the first record of a partition."""
        return self._last - self._counts[index]

    def _place(self, position: int, index: int) -> int:
        """Where a cursor stands in a partition."""
        return self._begin(index) + self._before[position][index]

    def _place_of_letter(self, letter: DeadLetter) -> tuple[int, int]:
        index = self._index_of(letter.to_record())
        rank = self._letter_ranks.get(letter.position)
        # The record of an old letter may have been removed. Its position stays: no other record gets it.
        return index, letter.position if rank is None else self._begin(index) + rank

    async def _divide_records(self) -> None:
        waiting: list[list[Record]] = [[] for _ in self.parts]
        ends = [self._begin(index) for index in range(len(self.parts))]
        for part, end in zip(self.parts, ends, strict=True):
            await part.contents.continue_after(end)
        async for record in records_of(self._source.journal, self._first - 1, self._last):
            index = self._index_of(record)
            ends[index] += 1
            waiting[index].append(msgspec.structs.replace(record, position=ends[index]))
            if len(waiting[index]) == _WAITING:
                await append_records(self.parts[index], waiting[index])
                waiting[index] = []
        for part, records in zip(self.parts, waiting, strict=True):
            if records:
                await append_records(part, records)

    async def _divide_entries(self) -> None:
        async for some in parts_of(self._source.contents):
            for entry in some:
                self._known.learn(entry)
        async for some in parts_of(self._source.contents):
            entries = [entry for entry in some if kind_of(entry.key) not in SINK_KINDS]
            shares: list[list[Entry]] = [[] for _ in self.parts]
            for entry, owner in zip(entries, self._known.owners(entries), strict=True):
                if owner is not None:
                    shares[owner].append(entry)
                elif entry.expires is not None and entry.expires < times.now() + _SOON:
                    # Only its tenant can reach it. So it does no harm in other partitions.
                    for share in shares:
                        share.append(entry)
                else:
                    self.unknown[kind_of(entry.key)] += 1
            for part, share in zip(self.parts, shares, strict=True):
                if share:
                    await part.contents.replace(share)
