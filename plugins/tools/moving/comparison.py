"""The comparison of two stores: records, state and cursors."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from operator import xor
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.hooks.loader import Plugins
from ingestd.storage.placements import index_of_tenant, read_map

from ..journal_reading import positions_of, records_of
from .known_keys import HOME
from .ledger import KindDigest, Ledger
from .sides import Side
from .sink_shares import SINK_KINDS
from .states import StateCopy, verified

__all__ = [
    "Compared", "RecordComparison", "Span", "compare_all", "compare_partition", "compare_regrouped", "compare_sides",
    "cursors_of", "ends_of", "firsts_of", "moved_tenants", "place_of",
]  # fmt: skip

_UNKNOWN = -1
_REPLACED = 100  # bodies of one request: they may be large
_Identity = tuple[str, int, str | None]


class JournalDigest(NamedTuple):
    """Which records of a journal were compared, and their digest."""

    first: int
    last: int
    digest: str


class Compared(NamedTuple):
    """What both sides have in a partition."""

    name: str
    """The name of the partition, which is empty if it is the only one."""
    journal: JournalDigest
    state: Sequence[KindDigest]
    cursors: int


class Span(NamedTuple):
    """The part of a side's records to compare: for each partition, after which position and up to which one."""

    after: Sequence[int]
    upto: Sequence[int]


class _Trace:
    """The records that came from one partition to another one, in their order."""

    def __init__(self, first: _Identity, *, is_ordered: bool) -> None:
        self.first = first
        self.count = 0
        self._is_ordered = is_ordered
        self._digest = b""

    def add(self, record: Record) -> None:
        self.count += 1
        head = b"%d %d %s " % (record.at, len(record.body), record.type.encode())
        digest = blake2b(head + record.body, digest_size=16, key=self._digest if self._is_ordered else b"").digest()
        self._digest = digest if self._is_ordered else bytes(map(xor, digest, self._digest or bytes(16)))

    @property
    def content(self) -> tuple[int, bytes]:
        return self.count, self._digest


class RecordComparison:
    """Compares the records of each pair of partitions, source and target, in their order.

    Several partitions of the source may have records without a tenant, and of the tenants in `moved`. The order of
    these is not compared.
    """

    def __init__(self, source: Sequence[Side], target: Sequence[Side], moved: Collection[str]) -> None:
        self._source = source
        self._target = target
        self._moved = moved
        self._left: list[Counter[tuple[str, int, int]]] = [Counter(), Counter()]
        """By consumer and pair: the records that it has not read, on both sides."""
        self._consumers: list[set[str]] = [set(), set()]

    async def compare(self, ours: Span, theirs: Span, *, repair: bool = False) -> list[JournalDigest]:
        """Returns what each partition of the target has. Raises `CommandError`, which names the difference.

        With `repair`, bodies that `ingestd forget` has blanked in the source meanwhile are blanked in the target first.
        """
        firsts = await firsts_of(self._source)
        trimmed = [first - 1 > after for first, after in zip(firsts, ours.after, strict=True)]

        def is_trimmed(origin: int) -> bool:
            return any(trimmed) if origin == _UNKNOWN else trimmed[origin]

        self._left, self._consumers = [Counter(), Counter()], [set(), set()]
        wanted: dict[tuple[int, int], _Trace] = {}
        for origin, side in enumerate(self._source):
            cursors = await positions_of(side.journal)
            self._consumers[0].update(cursors)
            async for record in records_of(side.journal, ours.after[origin], ours.upto[origin]):
                pair = self._pair(record)
                if pair not in wanted:
                    wanted[pair] = _Trace(_identity(record), is_ordered=pair[0] != _UNKNOWN)
                wanted[pair].add(record)
                self._count(0, cursors, record, pair)
        found: dict[tuple[int, int], _Trace] = {}
        digests = []
        for index, side in enumerate(self._target):
            cursors = await positions_of(side.journal)
            self._consumers[1].update(cursors)
            digest = blake2b(digest_size=16)
            async for record in records_of(side.journal, theirs.after[index], theirs.upto[index]):
                pair = self._pair(record)[0], index
                trace = found.get(pair)
                if trace is None:
                    # The source may have removed the oldest records since they were copied.
                    other = wanted.get(pair)
                    if is_trimmed(pair[0]) and (other is None or other.first != _identity(record)):
                        continue
                    trace = found[pair] = _Trace(_identity(record), is_ordered=pair[0] != _UNKNOWN)
                trace.add(record)
                digest.update(b"%d %d %d %s " % (record.position, record.at, len(record.body), record.type.encode()))
                digest.update(record.body)
                self._count(1, cursors, record, pair)
            digests.append(JournalDigest(theirs.after[index] + 1, theirs.upto[index], digest.hexdigest()))
        differing = sorted(
            pair
            for pair in wanted.keys() | found.keys()
            if pair not in wanted or pair not in found or wanted[pair].content != found[pair].content
        )
        for pair in differing:
            await self._look_closer(pair, ours, theirs, wanted.get(pair), repair=repair)
        return await self.compare(ours, theirs) if differing else digests

    async def compare_beside_daemon(self, ours: Span, theirs: Span) -> list[JournalDigest]:
        """The same with `repair`, while the source's daemon may remove its oldest records."""
        while True:
            begun = await firsts_of(self._source)
            try:
                return await self.compare(ours, theirs, repair=True)
            except CommandError:
                if begun == await firsts_of(self._source):
                    raise

    def _pair(self, record: Record) -> tuple[int, int]:
        """The partitions of a record: the source's and the target's."""
        origin = HOME
        if len(self._source) > 1:
            tenant = record.envelope().tenant
            origin = index_of_tenant(tenant, len(self._source)) if tenant and tenant not in self._moved else _UNKNOWN
        return origin, place_of(record, len(self._target))

    def differing_cursors(self) -> list[str]:
        """The consumers that would go on with other records, according to the last comparison."""
        ours, theirs = self._left
        differing = {key[0] for key in ours.keys() | theirs.keys() if ours[key] != theirs[key]}
        return sorted(differing | (self._consumers[0] ^ self._consumers[1]))  # without a cursor, it would start anew

    def _count(self, side: int, cursors: Mapping[str, int], record: Record, pair: tuple[int, int]) -> None:
        for name, position in cursors.items():
            if record.position > position:
                self._left[side][name, *pair] += 1

    async def _look_closer(
        self, pair: tuple[int, int], ours: Span, theirs: Span, trace: _Trace | None, *, repair: bool
    ) -> None:
        """Blank what is blank in the source. Raises `CommandError`, which names the first other difference."""
        origin, place = pair
        if origin == _UNKNOWN:
            raise CommandError(
                f"the copy differs from the source: {self._target[place]} has other records of no tenant,"
                " or of a tenant that was moved between partitions"
            )
        source, target = self._source[origin], self._target[place]
        found = self._of_pair(target, theirs.after[place], theirs.upto[place], pair)
        record = None
        async for other in found:
            if trace is None or _identity(other) == trace.first:
                record = other
                break
        changes: list[tuple[Record, bytes]] = []
        has_changed = False
        async for mine in self._of_pair(source, ours.after[origin], ours.upto[origin], pair):
            if record is None or _identity(record) != _identity(mine) or (record.body != mine.body and not repair):
                raise CommandError(
                    f"the copy differs from the source: {target} has another record than {source} at {mine.position}"
                )
            if record.body != mine.body:
                changes.append((record, mine.body))
                has_changed = True
                if len(changes) == _REPLACED:
                    await target.journal.replace(changes)
                    changes = []
            record = await anext(found, None)
        if record is not None or not has_changed:
            where = "" if record is None else f" at {record.position}"
            raise CommandError(f"the copy differs from the source: {target} has a record{where} that {source} has not")
        await target.journal.replace(changes)

    async def _of_pair(self, side: Side, after: int, upto: int, pair: tuple[int, int]) -> AsyncIterator[Record]:
        async for record in records_of(side.journal, after, upto):
            if self._pair(record) == pair:
                yield record


def _identity(record: Record) -> _Identity:
    return record.type, record.at, record.envelope().id


async def compare_sides(source: Side, target: Side, plugins: Plugins) -> Compared:
    """Compare two partitions that no daemon serves from. Raises `CommandError`, which names what differs."""
    with closing(Ledger()) as ledger:
        await StateCopy([source], (), None, plugins, ledger).run(spread=False)
        return await compare_partition(source, target, 0, ledger, copying=False)


async def compare_partition(source: Side, target: Side, after: int, ledger: Ledger, *, copying: bool) -> Compared:
    """As `compare_all`, for a partition that must have the same records at the same positions, from `after` on."""
    extent, there = await source.journal.extent(), await target.journal.extent()
    if (there.first, there.last) != (extent.first, extent.last):
        raise CommandError(
            f"the copy differs from the source: {source} has the records {extent.first} to {extent.last},"
            f" and {target} has {there.first} to {there.last}"
        )
    span = Span([max(after, extent.first - 1)], [extent.last])
    (journal,) = await RecordComparison([source], [target], ()).compare(span, span, repair=copying)
    copy = f"partition {target.name} of the copy" if target.name else "the copy"
    (state,) = await verified([target], ledger, remove=copying, copy=copy)
    mine, others = await cursors_of(source.journal), await cursors_of(target.journal)
    if cursors := sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)):
        raise CommandError(f"{copy} differs from the source in the cursors of {', '.join(cursors)}")
    return Compared(target.name, journal, state, len(others))


async def cursors_of(journal: Journal) -> dict[str, int]:
    """The positions of consumers, none of which is before the removed records."""
    first = (await journal.extent()).first
    return {name: max(position, first - 1) for name, position in (await positions_of(journal)).items()}


async def compare_regrouped(source: Sequence[Side], target: Sequence[Side], plugins: Plugins) -> Sequence[Compared]:
    """Compare two stores that no daemon serves from. Raises `CommandError`, which names what differs."""
    ours = Span([0] * len(source), await ends_of(source))
    with closing(Ledger(SINK_KINDS)) as ledger:
        await StateCopy(source, (), None, plugins, ledger).run(spread=False)
        return await compare_all(
            source, target, ours, Span([0] * len(target), await ends_of(target)), ledger, copying=False
        )


async def compare_all(
    source: Sequence[Side], target: Sequence[Side], ours: Span, theirs: Span, ledger: Ledger, *, copying: bool
) -> Sequence[Compared]:
    """Compare these records, the cursors, and the state with the ledger. Raises `CommandError`, `Unavailable`.

    `copying` lets the target follow the source: bodies are blanked, and entries that the source lacks are removed.
    """
    comparison = RecordComparison(source, target, await moved_tenants(source))
    journals = await comparison.compare(ours, theirs, repair=copying)
    if cursors := comparison.differing_cursors():
        raise CommandError(f"the copy differs from the source in the cursors of {', '.join(cursors)}")
    state = await verified(target, ledger, remove=copying)
    counted = [len(await side.journal.cursors()) for side in target]
    names = [side.name for side in target]
    return [Compared(*each) for each in zip(names, journals, state, counted, strict=True)]


async def moved_tenants(source: Sequence[Side]) -> dict[str, int]:
    """The tenants that were moved between partitions, each with the number in its keys. Raises `Unavailable`."""
    placements = await read_map(source[0].store.begin(times.now()), len(source))
    return {tenant: placed.place.namespace for tenant, placed in placements.tenants.items()}


def place_of(record: Record, partitions: int) -> int:
    """The index of a record's partition, in a store with so many."""
    tenant = record.envelope().tenant if partitions > 1 else None
    return index_of_tenant(tenant, partitions) if tenant else HOME


async def ends_of(sides: Sequence[Side]) -> list[int]:
    """The positions of the newest records."""
    return [await side.journal.last() for side in sides]


async def firsts_of(sides: Sequence[Side]) -> list[int]:
    """The positions of the oldest records."""
    return [(await side.journal.extent()).first for side in sides]
