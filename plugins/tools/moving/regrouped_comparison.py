"""The comparison of two stores with different numbers of partitions: records, state and cursors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.hooks.loader import Plugins
from ingestd.storage.placements import index_of_tenant, read_map

from .known_keys import HOME
from .ledger import Ledger
from .record_comparison import UNKNOWN, RecordComparison, Span
from .sides import Side
from .sink_shares import SINK_KINDS
from .states import StateCopy, refuse_differences, verified
from .store_copy import Compared

__all__ = ["compare_all", "compare_regrouped", "comparison_of", "ends_of", "moved_tenants", "place_of"]


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
    comparison = comparison_of(source, target, await moved_tenants(source))
    journals = await comparison.compare(ours, theirs, repair=copying)
    if cursors := comparison.differing_cursors():
        raise CommandError(f"the copy differs from the source in the cursors of {', '.join(cursors)}")
    state, differences = await verified(target, ledger, remove=copying)
    refuse_differences(differences)
    counted = [len(await side.journal.cursors()) for side in target]
    names = [side.name for side in target]
    return [Compared(*each) for each in zip(names, journals, state, counted, strict=True)]


async def moved_tenants(source: Sequence[Side]) -> dict[str, int]:
    """The tenants that were moved between partitions, each with the number in its keys. Raises `Unavailable`."""
    placements = await read_map(source[0].store.begin(times.now()), len(source))
    return {tenant: placed.place.namespace for tenant, placed in placements.tenants.items()}


def comparison_of(source: Sequence[Side], target: Sequence[Side], moved: Collection[str]) -> RecordComparison:
    """The comparison of the records of two stores by the tenants of the records.

    `moved` are the tenants that may have records in several partitions of the source.
    """

    def origin(record: Record) -> int:
        if len(source) == 1:
            return HOME
        tenant = record.envelope().tenant
        return index_of_tenant(tenant, len(source)) if tenant and tenant not in moved else UNKNOWN

    return RecordComparison(source, target, origin, lambda record: place_of(record, len(target)))


def place_of(record: Record, partitions: int) -> int:
    """The index of a record's partition, in a store with so many."""
    tenant = record.envelope().tenant if partitions > 1 else None
    return index_of_tenant(tenant, partitions) if tenant else HOME


async def ends_of(sides: Sequence[Side]) -> list[int]:
    """The positions of the newest records."""
    return [await side.journal.last() for side in sides]
