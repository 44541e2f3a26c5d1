"""The state of a copy: all entries of a source go to the partitions of their tenants, and are compared there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice

from ingestd.api import times
from ingestd.api.contents import Contents, Entry, kind_of
from ingestd.api.errors import CommandError
from ingestd.hooks.loader import Plugins
from ingestd.storage.copy_mark import MARK_KEY

from .known_keys import EVERYWHERE, HOME, KnownKeys
from .ledger import Digests, KindDigest, Ledger
from .sides import Side

__all__ = ["StateCopy", "parts_of", "verified"]

_PART = 250  # entries of one commit
_PART_BYTES = 1 << 20
_TOLD = 100_000  # entries between two lines about the progress
_SOON = 2 * 86_400_000  # milliseconds
_NAMED = 5  # entries in a message


class StateCopy:
    """Copies all entries, once, but those of kinds that the ledger leaves out. It gets what the target must have then.

    Without a `target`, the ledger gets what the source has, at any place.
    """

    def __init__(
        self,
        source: Sequence[Side],
        target: Sequence[Side],
        known: KnownKeys | None,
        plugins: Plugins,
        ledger: Ledger,
        *,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`known` finds the partitions of entries. Without it all of them belong to the first one.

        `say` gets lines about the progress.
        """
        self.changed = 0
        """The entries that were copied, because they differed."""
        self.unknown: Counter[str] = Counter()
        """The entries that were left out because their tenant is unknown, by kind."""
        self._source = source
        self._target = target
        self._known = known
        self._plugins = plugins
        self._ledger = ledger
        self._say = say
        self._waiting: list[list[Entry]] = [[] for _ in target]
        self._bytes = [0] * len(target)

    async def run(self, *, spread: bool) -> None:
        """`spread` gives entries that expire soon to all partitions if their tenant is unknown.

        Raises `CommandError` if several partitions have an entry that cannot be merged, `HookFailure`, `Unavailable`.
        """
        repeated: set[str] = set()
        seen = 0
        for side in self._source:
            async for part in parts_of(side.contents):
                before, seen = seen, seen + len(part)
                if seen // _TOLD > before // _TOLD:
                    self._say(f"{seen} entries of state compared, {self.changed} copied")
                entries = [entry for entry in part if kind_of(entry.key) not in self._ledger.left_out]
                for entry, place in self._placed(entries, spread=spread):
                    if self._ledger.add(entry, place):
                        await self._give(entry, place)
                    else:
                        repeated.add(entry.key)
        keys = iter(sorted(repeated))
        while some := [Entry(key) for key in islice(keys, _PART)]:
            versions = zip(*[await side.contents.find(some) for side in self._source], strict=True)
            merged = [await self._merged([each for each in found if each is not None]) for found in versions]
            for entry, place in self._placed([entry for entry in merged if entry is not None], spread=spread):
                self._ledger.replace(entry, place)
                await self._give(entry, place)
        for index in range(len(self._target)):
            await self._flush(index)

    def _placed(self, entries: Sequence[Entry], *, spread: bool) -> Iterator[tuple[Entry, int]]:
        if self._known is None:
            yield from ((entry, HOME if self._target else EVERYWHERE) for entry in entries)
            return
        for entry in entries:
            self._known.learn(entry)
        for entry, owner in zip(entries, self._known.owners(entries), strict=True):
            if owner is not None and owner != EVERYWHERE:
                yield entry, owner
            elif _expires_soon(entry) and (spread or owner == EVERYWHERE):
                yield entry, EVERYWHERE  # only its tenant can reach it, so it does no harm in other partitions
            else:
                self.unknown[kind_of(entry.key)] += 1

    async def _merged(self, versions: Sequence[Entry]) -> Entry | None:
        """What the target gets of an entry that several partitions have. An earlier copy may have given it to all."""
        if len(versions) < 2:  # the source's daemon has removed it meanwhile
            return versions[0] if versions else None
        merged = await self._plugins.hooks.merge_state(versions)
        if merged is not None:
            return merged
        if any(each != versions[0] for each in versions):
            lasting = [each for each in versions if not _expires_soon(each)]
            if len(lasting) > 1:
                raise CommandError(
                    f"several partitions have the entry {versions[0].key}, and no plugin merges entries of the kind"
                    f" {kind_of(versions[0].key)} (hook merge_state)"
                )
            return lasting[0] if lasting else max(versions, key=lambda each: each.expires or 0)
        return versions[0]

    async def _give(self, entry: Entry, place: int) -> None:
        for index in range(len(self._target)) if place == EVERYWHERE else (place,):
            self._waiting[index].append(entry)
            self._bytes[index] += entry.size
            if len(self._waiting[index]) == _PART or self._bytes[index] > _PART_BYTES:
                await self._flush(index)

    async def _flush(self, index: int) -> None:
        # A merged entry comes after the first version of it.
        entries = [*{entry.key: entry for entry in self._waiting[index]}.values()]
        if entries:
            contents = self._target[index].contents
            found = await contents.find(entries)
            different = [entry for entry, other in zip(entries, found, strict=True) if entry != other]
            if different:
                await contents.replace(different)
            self.changed += len(different)
        self._waiting[index], self._bytes[index] = [], 0


async def verified(
    target: Sequence[Side], ledger: Ledger, *, remove: bool, copy: str = "the copy"
) -> list[list[KindDigest]]:
    """Compare a store with a ledger. Returns the digests of each partition.

    `remove` removes the entries that are not in the ledger. Raises `CommandError`, which names some entries that
    differ, and `Unavailable`.
    """
    found, differences = [], list[str]()
    for index, side in enumerate(target):
        digests = Digests()
        async for part in parts_of(side.contents):
            others = []
            entries = [entry for entry in part if kind_of(entry.key) not in ledger.left_out]
            met = ledger.meet(entries)
            for entry in entries:
                row = met.get(entry.key)
                if row is None or row[0] not in {index, EVERYWHERE}:
                    others.append(entry)
                    continue
                if _has_expired(entry):
                    continue
                digest = entry.digest()
                if row[1] != digest:
                    differences.append(f"{entry.key} has another content")
                digests.add(kind_of(entry.key), 1, int.from_bytes(digest, "big"))
            if others and remove:
                await side.contents.remove(others)
            elif len(differences) < _NAMED:
                differences += [f"{entry.key} is not in the source" for entry in others if not _has_expired(entry)]
        found.append(digests.of_kinds())
    differences += [f"{key} is missing" for key in islice(ledger.missing(), _NAMED)]
    if differences:
        kinds = sorted({kind_of(each) for each in differences})
        raise CommandError(
            f"{copy} differs from the source in entries of {', '.join(kinds)}: {', '.join(differences[:_NAMED])}"
        )
    return found


def _expires_soon(entry: Entry) -> bool:
    return entry.expires is not None and entry.expires < times.now() + _SOON


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
