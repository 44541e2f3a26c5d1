"""The partitions of a back end: which one a tenant belongs to, and one store over all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from ingestd.api.backend import Partition
from ingestd.api.store import State, Store

__all__ = ["PartitionedStore", "index_of_tenant", "partition_of"]


@lru_cache(maxsize=4096)  # of 200 bytes each; many requests come from few tenants
def index_of_tenant(tenant: str, partitions: int) -> int:
    """The index of a tenant's partition. Stored data depends on it, so it never changes."""
    digest = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def partition_of(tenant: str, partitions: Sequence[Partition]) -> Partition:
    """The partition of a tenant, among all partitions of the back end."""
    return partitions[0] if len(partitions) == 1 else partitions[index_of_tenant(tenant, len(partitions))]


class PartitionedStore(Store):
    """The stores of several partitions as one. State that belongs to no tenant is in the first partition."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = partitions
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
        return self._partitions[index_of_tenant(tenant, len(self._partitions))].store

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
