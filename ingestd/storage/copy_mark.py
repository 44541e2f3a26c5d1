"""The mark of an unfinished copy. A store with it has only a part of the data, so no daemon serves from it."""

from __future__ import annotations

import msgspec

from ingestd.api import times
from ingestd.api.errors import ConfigError
from ingestd.api.store import State, Store, StoredValue

__all__ = [
    "MARK_KEY",
    "CopyMark",
    "Regrouping",
    "put_mark",
    "read_mark",
    "refuse_unfinished",
    "write_mark",
]


class Regrouping(msgspec.Struct):
    """What a partition of the target has of the source's partitions, in their order."""

    begin: int
    """The position that the partition's journal continues after. It is the same in all partitions."""
    copied: list[int]
    """For each partition of the source, the position up to which this partition has its records."""
    cursors: dict[str, list[int]] = {}
    """For each consumer whose cursor is set, the positions in the source's partitions that the cursor stands for."""
    compared: list[int] = []
    """In the first partition: the positions in the source's partitions up to which all records were compared."""
    compared_to: list[int] = []
    """In the first partition: the ends of the target's partitions at that time."""


class CopyMark(msgspec.Struct):
    """What the copy of a store has done so far."""

    source: str
    """The URL of the source, without a password."""
    begun_at: int
    """When the first run began, in milliseconds."""
    compared_to: int = 0
    """The position up to which the records of both sides were compared."""
    erased_at: int = 0
    """The time of the newest erasure among the copied records, in milliseconds; 0 without one."""
    regrouping: Regrouping | None = None
    """What only a copy to another number of partitions needs."""


_MARK = StoredValue("store-copy", CopyMark)
MARK_KEY = _MARK.key()


async def read_mark(store: Store) -> CopyMark | None:
    """The mark of a store; None if its data is complete. Raises `Unavailable`."""
    return await _MARK.load(store.begin(times.now()))


async def put_mark(state: State, mark: CopyMark) -> None:
    """Write the mark in a transaction."""
    await _MARK.save(state, mark)


async def write_mark(store: Store, mark: CopyMark | None) -> None:
    """Write the mark durably, or remove it. Raises `Unavailable`, `WriteConflict`."""
    state = store.begin(times.now())
    await _MARK.save(state, mark)
    await store.commit(state)


async def refuse_unfinished(place: str, store: Store) -> None:
    """Raises `ConfigError` if the copy of a store is unfinished. `place` names the option that has its URL."""
    mark = await read_mark(store)
    if mark is not None:
        raise ConfigError(
            f"{place}: the copy of {mark.source} to this store is unfinished; finish it with `ingestd store copy`,"
            " or name the former store here"
        )
