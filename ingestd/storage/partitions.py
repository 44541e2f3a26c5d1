"""One store over all partitions of a back end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ingestd.api.backend import Partition
from ingestd.api.store import State, Store

from .placements import Placements

__all__ = ["PartitionedStore"]


class PartitionedStore(Store):
    """The stores of several partitions as one. State that belongs to no tenant is in the first partition."""

    def __init__(self, partitions: Sequence[Partition], placements: Placements) -> None:
        self._partitions = partitions
        self._placements = placements
        self._home = partitions[0].store

    @property
    def may_conflict(self) -> bool:  # type: ignore[override] # it is the first partition's, and changes there
        return self._home.may_conflict

    @property
    def store_id(self) -> str | None:  # type: ignore[override] # as above
        return self._home.store_id

    @property
    def losses(self) -> int:  # type: ignore[override] # as above
        return self._home.losses

    @property
    def loss(self) -> str | None:  # type: ignore[override] # as above
        return self._home.loss

    def of_tenant(self, tenant: str) -> Store:
        return self._partitions[self._placements.index_of(tenant)].store

    @property
    def parts(self) -> Sequence[Store]:
        return [partition.store for partition in self._partitions]

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> State:
        return self._home.begin(now, event=event, step=step)

    async def commit(self, state: State) -> None:
        await self._home.commit(state)

    def discard(self, state: State) -> None:
        self._home.discard(state)

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        for partition in self._partitions:
            async for entry in partition.store.scan(kind):
                yield entry

    async def look_for_loss(self) -> None:
        await self._home.look_for_loss()

    async def clear_loss(self) -> bool:
        return await self._home.clear_loss()

    async def report_loss(self, what: str) -> None:
        await self._home.report_loss(what)
