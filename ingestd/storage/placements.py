"""Which partition each tenant belongs to. A hash of its name decides, or `ingestd partitions place` has.

The first partition has the map of moved tenants. Each change makes a new version of it. All daemons learn it within
seconds. `Store.fence` refuses the commits of those that have not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.store import State, Store, StoredValue, use_namespaces

__all__ = [
    "MAP_KEY",
    "Move",
    "Place",
    "Placed",
    "PlacementMap",
    "Placements",
    "index_of_tenant",
    "put_map",
    "read_map",
    "unfinished",
]


@lru_cache(maxsize=4096)  # of 200 bytes each; many requests come from few tenants
def index_of_tenant(tenant: str, partitions: int) -> int:
    """The index of a tenant's partition by its name. Stored data depends on it, so it never changes."""
    digest = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


class Place(NamedTuple):
    """Where entries of a tenant are: the index of the partition, and the number in their keys."""

    partition: int
    namespace: int = 0
    """0 for keys without a number."""


class Move(msgspec.Struct, frozen=True):
    """A move that has begun."""

    source: Place
    target: Place
    owned: bool = False
    """Whether the tenant belongs to the target already."""
    halted: bool = False
    """Whether events of the tenant are refused."""


class Placed(msgspec.Struct, frozen=True):
    """A tenant that was moved."""

    place: Place
    former: list[Place] = []
    """The newest is first. Where records of the tenant, and entries that nobody could tell from others, may be left."""
    move: Move | None = None


class PlacementMap(msgspec.Struct, frozen=True):
    """The moved tenants."""

    partitions: int
    """Their number. A copy of the store may have another number: then names decide again, and the keys stay."""
    version: int = 0
    tenants: dict[str, Placed] = {}


_MAP = StoredValue("tenant-placements", PlacementMap)
MAP_KEY = _MAP.key()


async def read_map(state: State, partitions: int) -> PlacementMap:
    """The map of a store with so many partitions. `state` is of the first one. Raises `Unavailable`."""
    known = await _MAP.load(state)
    if known is None:
        return PlacementMap(partitions)
    if known.partitions == partitions:
        return known
    tenants = {
        tenant: Placed(place, [place._replace(namespace=0)])
        for tenant, placed in known.tenants.items()
        for place in [Place(index_of_tenant(tenant, partitions), placed.place.namespace)]
    }
    return PlacementMap(partitions, known.version, tenants)


def unfinished(placements: PlacementMap, names: Sequence[str]) -> str | None:
    """What is to be done about a move that has begun; None without one. `names` are those of the partitions."""
    for tenant, placed in placements.tenants.items():
        if (move := placed.move) is not None:
            events = "its events are refused; " if move.halted else ""
            return (
                f"the move of {tenant!r} has not ended; {events}unless it is running, run"
                f" `ingestd partitions place {shlex.quote(tenant)} --partition {names[move.target.partition]}`"
            )
    return None


async def put_map(state: State, placements: PlacementMap) -> None:
    """Write the map in a transaction that has read it."""
    await _MAP.save(state, placements)


class Placements:
    """The map as this process knows it. It belongs to one store, and so do the keys that the process makes."""

    def __init__(self, partitions: int) -> None:
        self.map = PlacementMap(partitions)
        self.problem: Unavailable | None = None
        """Why the map is not known."""

    async def learn(self, stores: Sequence[Store]) -> None:
        """Read the map, and use it from now on. `stores` are those of all partitions.

        Raises `Unavailable`, and `WriteConflict` if another process writes the map.
        """
        state = stores[0].begin(times.now())
        found = await read_map(state, len(stores))
        if found.version < self.map.version:  # the first partition has lost data; the others refuse an older map
            await put_map(state, self.map)
            await stores[0].commit(state)
        else:
            self.use(found, stores)

    def use(self, placements: PlacementMap, stores: Sequence[Store]) -> None:
        self.map, self.problem = placements, None
        use_namespaces({tenant: placed.place.namespace for tenant, placed in placements.tenants.items()})
        for store in stores:
            store.placement = placements.version

    @property
    def is_changing(self) -> bool:
        """Whether a tenant is being moved, so that the map changes soon."""
        return any(placed.move is not None for placed in self.map.tenants.values())

    @property
    def is_halted(self) -> bool:
        """Whether events of a tenant are refused."""
        return any(placed.move is not None and placed.move.halted for placed in self.map.tenants.values())

    def index_of(self, tenant: str) -> int:
        """The index of the partition of a tenant. Raises `Unavailable` if the map is not known."""
        if self.problem is not None:
            raise self.problem
        if self.map.tenants and (placed := self.map.tenants.get(tenant)) is not None:
            return placed.place.partition
        return index_of_tenant(tenant, self.map.partitions)

    def places_of(self, tenant: str) -> list[Place]:
        """Where a tenant has records and entries, the present place first."""
        placed = self.map.tenants.get(tenant)
        return [Place(self.index_of(tenant))] if placed is None else [placed.place, *placed.former]

    def indices_of(self, tenant: str) -> list[int]:
        """The indices of the partitions with records of a tenant, each once, the present one first."""
        return [*dict.fromkeys(place.partition for place in self.places_of(tenant))]

    def all_places(self) -> Iterator[Place]:
        """Where moves have brought entries. Some may be of other tenants than the one that was moved."""
        for placed in self.map.tenants.values():
            yield from (each for each in [placed.place, *placed.former] if each.namespace)
            if placed.move is not None:
                yield placed.move.target

    def namespaces(self, tenant: str, namespace: int) -> Mapping[str, int]:
        """The numbers in the keys of all tenants, with another one for this tenant."""
        return {each: placed.place.namespace for each, placed in self.map.tenants.items()} | {tenant: namespace}

    def check(self, index: int, tenant: str) -> None:
        """Raises `Unavailable` if no event of the tenant may be stored in the partition with this index now."""
        placed = self.map.tenants.get(tenant)
        if placed is not None and placed.move is not None and placed.move.halted:
            raise Unavailable("Events are not taken while their data is moved. Send the request again.")
        if self.index_of(tenant) != index:
            raise Unavailable("The data of these events has just been moved. Send the request again.")
