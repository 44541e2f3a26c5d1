"""The state of a copy: every entry of the source, compared with that of the target and copied if it differs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.contents import Contents, Entry
from ingestd.storage.copy_mark import MARK_KEY

from .digests import Digests

__all__ = ["Difference", "copy_entries", "differences", "digest_entries", "parts_of", "remove_others"]

_PART = 250  # entries of one commit
_PART_BYTES = 1 << 20
_AHEAD = 3  # parts that the other store is asked for meanwhile


class Difference(NamedTuple):
    """An entry of which the two sides have different contents."""

    key: str
    what: str
    """How the target differs: "is missing", "has another content" or "is not in the source"."""


async def copy_entries(
    source: Contents, target: Contents, ours: Digests, theirs: Digests, copied: Callable[[int, int], None]
) -> int:
    """Copy all entries that differ. Returns their number.

    `ours` gets all entries of the source, and `theirs` what the target has under their keys, read after the copy of
    each. `copied` gets the number of entries that were looked at, and of those that were copied. Raises `Unavailable`.
    """
    seen = changed = 0
    async for part, found in _found_in(target, parts_of(source)):
        different = [entry for entry, other in zip(part, found, strict=True) if entry != other]
        if different:
            await target.replace(different)
            for stored in await target.find(different):
                if stored is not None:
                    theirs.add(stored)
        for entry, other in zip(part, found, strict=True):
            digest = entry.digest()
            ours.add(entry, digest)
            if entry == other:
                theirs.add(entry, digest)
        seen, changed = seen + len(part), changed + len(different)
        copied(seen, changed)
    return changed


async def remove_others(source: Contents, target: Contents) -> int:
    """Remove the entries of the target that the source does not have. Returns their number. Raises `Unavailable`."""
    removed = 0
    async for others in _others(source, target):
        await target.remove(others)
        removed += len(others)
    return removed


async def _others(source: Contents, target: Contents) -> AsyncIterator[list[Entry]]:
    """The entries of the target that the source does not have. A key of them may come twice."""
    async for keys in target.all_keys():
        absent = [Entry(key) for key in await source.absent(keys) if key != MARK_KEY]
        if absent and (others := [entry for entry in await target.find(absent) if entry is not None]):
            yield others


async def _found_in(
    contents: Contents, parts: AsyncIterator[list[Entry]]
) -> AsyncIterator[tuple[list[Entry], Sequence[Entry | None]]]:
    """Each part with what the contents have under its keys. The next parts are read ahead."""
    coming: deque[tuple[list[Entry], asyncio.Future[Sequence[Entry | None]]]] = deque()
    try:
        async for part in parts:
            coming.append((part, asyncio.ensure_future(contents.find(part))))
            if len(coming) > _AHEAD:
                first, found = coming.popleft()
                yield first, await found
        while coming:
            first, found = coming.popleft()
            yield first, await found
    finally:
        for _, found in coming:
            found.cancel()
        await asyncio.gather(*(found for _, found in coming), return_exceptions=True)


async def digest_entries(contents: Contents, digests: Digests) -> None:
    """Add all entries to the digests. Raises `Unavailable`."""
    async for part in parts_of(contents):
        for entry in part:
            digests.add(entry)


async def differences(source: Contents, target: Contents) -> AsyncIterator[Difference]:
    """The entries that differ, without expired ones. Raises `Unavailable`."""
    async for part, found in _found_in(target, parts_of(source)):
        for entry, other in zip(part, found, strict=True):
            if entry != other and not _has_expired(entry):
                yield Difference(entry.key, "is missing" if other is None else "has another content")
    async for others in _others(source, target):
        for entry in others:
            if not _has_expired(entry):
                yield Difference(entry.key, "is not in the source")


def _has_expired(entry: Entry) -> bool:
    return entry.expires is not None and entry.expires <= times.now()


async def parts_of(contents: Contents) -> AsyncIterator[list[Entry]]:
    """All entries but the mark of the copy, in parts of a bounded size. The next ones are read ahead."""
    pages = contents.entries()
    coming = asyncio.ensure_future(anext(pages, None))
    try:
        while (some := await coming) is not None:
            coming = asyncio.ensure_future(anext(pages, None))
            for part in _divided(some):
                yield part
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _divided(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.key == MARK_KEY:
            continue
        if part and (len(part) == _PART or size + entry.size > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield part
