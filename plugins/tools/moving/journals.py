"""The journals of a copy: records keep their positions, and consumers their cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.journal import Journal

from ..forget.traces import ERASURE
from .sides import Side

__all__ = [
    "JournalDigest",
    "append_records",
    "compare_journals",
    "copy_cursors",
    "copy_records",
    "differing_cursors",
    "records_of",
    "set_cursors",
]

_PAGE = 500  # records of one commit
_TRIMMED = 500  # records that one step removes
_REPLACED = 100  # bodies of one request: they may be large


class JournalDigest(NamedTuple):
    """Which records of a journal were compared, and their digest."""

    first: int
    last: int
    digest: str


async def copy_records(
    source: Side, target: Side, copied: Callable[[int], None], erased: Callable[[int], Awaitable[None]]
) -> None:
    """Copy the records that the target lacks, and remove those that the source has removed.

    `copied` gets the position reached. `erased` gets the time of each erasure (milliseconds), before the record is
    copied. Raises `CommandError`, `Unavailable`.
    """
    extent = await source.journal.extent()
    while (after := await _align(source, target)) < extent.last:
        while after < extent.last:
            records = await source.journal.read(after, _PAGE)
            if not records or records[0].position != after + 1:  # a daemon has trimmed them: align again
                break
            for record in records:
                if record.type == ERASURE:
                    await erased(record.at)
            after = await append_records(target, records)
            copied(after)


async def _align(source: Side, target: Side) -> int:
    """Begin the target's journal where the source's begins. Returns the last position of the target."""
    extent, there = await source.journal.extent(), await target.journal.extent()
    if there.last > extent.last:
        raise CommandError(
            f"the journal of {target} ends at {there.last}, after that of {source} at {extent.last}:"
            " it is no copy of it; begin with an empty target"
        )
    while await target.journal.trim(min(extent.first - 1, there.last), _TRIMMED):
        pass
    if there.last >= extent.first - 1:
        return there.last
    await target.contents.continue_after(extent.first - 1)
    return extent.first - 1


async def append_records(target: Side, records: Sequence[Record]) -> int:
    """Append records, and return the position of the last one. Raises `CommandError` if it is another than expected."""
    last = await target.journal.commit(records, target.store.begin(times.now()))
    if last != records[-1].position:
        raise CommandError(f"another program writes to {target}; stop it, and begin with an empty target")
    return last


async def compare_journals(
    source: Side, target: Side, after: int, *, repair: bool = False, serving: bool = False
) -> JournalDigest:
    """Compare all records after a position. Raises `CommandError`, which names the first difference.

    With `repair`, bodies that `ingestd forget` has blanked in the source meanwhile are blanked in the target first.
    `serving`: the source has a daemon, so that it may have newer records, and may have removed its oldest ones.
    """
    extent, there = await source.journal.extent(), await target.journal.extent()
    if (there.first, there.last) != (extent.first, extent.last) and not serving:
        raise CommandError(
            f"the copy differs from the source: {source} has the records {extent.first} to {extent.last},"
            f" and {target} has {there.first} to {there.last}"
        )
    after = max(after, extent.first - 1)
    digest = blake2b(digest_size=16)
    changes: list[tuple[Record, bytes]] = []
    has_changed = False
    ours = records_of(source.journal, after, there.last)
    record = await anext(ours, None)
    async for other in records_of(target.journal, after, there.last):
        if serving and record is not None and other.position < record.position:
            continue
        if record == other:
            digest.update(b"%d %d %d %s " % (other.position, other.at, len(other.body), other.type.encode()))
            digest.update(other.body)
        elif repair and record is not None and _is_blanked(other, record):
            changes.append((other, record.body))
            has_changed = True
        else:
            raise CommandError(f"the copy differs from the source: the first other record is at {other.position}")
        if len(changes) == _REPLACED:
            await target.journal.replace(changes)
            changes = []
        record = await anext(ours, None)
    await target.journal.replace(changes)
    if has_changed:
        return await compare_journals(source, target, after, serving=serving)
    return JournalDigest(after + 1, there.last, digest.hexdigest())


def _is_blanked(other: Record, record: Record) -> bool:
    return (other.position, other.type, other.at) == (record.position, record.type, record.at)


async def records_of(journal: Journal, after: int, upto: int) -> AsyncIterator[Record]:
    """The records after a position and up to another one."""
    while after < upto and (records := await journal.read(after, _PAGE)):
        for record in records:
            if record.position <= upto:
                yield record
        after = records[-1].position


async def copy_cursors(source: Side, target: Side) -> int:
    """Give the target the cursors of the source. Returns their number."""
    wanted = await _cursors(source.journal)
    await set_cursors(target, wanted)
    return len(wanted)


async def set_cursors(target: Side, wanted: Mapping[str, int]) -> None:
    """Set the positions of consumers, by name."""
    for name, position in wanted.items():
        cursor = await target.journal.acquire_cursor(name, "beginning")
        if cursor.position != position:
            state = target.store.begin(times.now())
            await target.journal.commit([], state, cursor._replace(position=position))
        await target.journal.release(cursor)


async def differing_cursors(source: Side, target: Side) -> list[str]:
    """The names of the consumers whose cursors differ."""
    ours, theirs = await _cursors(source.journal), await _cursors(target.journal)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


async def _cursors(journal: Journal) -> dict[str, int]:
    first = (await journal.extent()).first
    return {cursor.name: max(cursor.position, first - 1) for cursor in await journal.cursors()}
