"""`ingestd partitions place`: the move of a tenant to another partition, beside running daemons.

1. The map of placements says that a move has begun. The source notes which entries change from now on.
2. The state of the tenant is copied, and what has changed meanwhile is copied again.
3. The daemons refuse events of the tenant, and the source refuses commits of daemons that do not know that yet.
   Attribution and other consumers with state read up to the last record of the tenant. The last changes are copied.
4. The map says that the tenant belongs to the target. The target refuses commits of daemons that do not know that yet.
5. The daemons take events of the tenant again. Its entries in the source are removed.

The keys of the copied entries have a number of this move. So an entry whose tenant is unknown may be copied too: it
replaces none of another tenant, and nobody else reaches it. A killed command is run again. Before step 4 it begins anew
with another number; after that it does the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.contents import Contents, Entry, kind_of, namespace_of
from ingestd.api.errors import CommandError, Unavailable, WriteConflict
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import QUICK_LOOK, Backends, open_backends
from ingestd.storage.placements import MAP_KEY, Move, Place, Placed, PlacementMap, put_map, read_map, unfinished
from ingestd.support.periodic import TIMING
from ingestd.support.terminal import printable

from .journal_reading import pages_of, positions_of
from .moving.known_keys import HOME, KnownKeys, texts_in
from .moving.sink_shares import SINK_KINDS
from .moving.states import parts_of
from .sinks.partitions import find_partition
from .sinks.progress_bar import ProgressBar

__all__ = ["Moved", "TenantMove", "place"]

_OURS = HOME + 1  # the owner of the tenant's keys
_ATTEMPTS = 20  # to change the map
_PAGE = 500  # records or keys of one read
_MANY = 10_000  # records whose reading shows its progress
_FEW = 200  # changed entries that may be left when the tenant is halted
_ROUNDS = 30  # of copying what has changed, beside events
_TO_LEARN = 3 * QUICK_LOOK  # seconds until daemons know a new map
_TO_CATCH_UP = 15.0  # seconds for consumers


class Moved(NamedTuple):
    entries: int
    seconds: float
    """For which events of the tenant were refused."""


class TenantMove:
    """A run of the command."""

    def __init__(self, backends: Backends, plugins: Plugins, tenant: str, *, quiet: bool) -> None:
        self._backends = backends
        self._plugins = plugins
        self._tenant = tenant
        self._quiet = quiet
        self._known = KnownKeys(lambda each: _OURS if each == tenant else HOME)
        self._learned: dict[int, int] = {}
        """By partition, the position up to which its records were learned."""
        self._copied = 0

    def close(self) -> None:
        """Remove the temporary file."""
        self._known.close()

    async def run(self, index: int) -> Moved | None:
        """Move the tenant to the partition with this index. Returns None if it was there.

        Raises `CommandError`, `Unavailable`.
        """
        moved = None
        try:
            move = self._placed.move
            if move is not None and move.owned:
                await self._end(move)
            elif move is not None:
                await self._drop(move)
            if self._placed.place.partition != index:
                moved = await self._move(index)
        except Unavailable as error:
            if self._placed.move is None:
                raise
            text = "events of the tenant may be refused. Run the command again, or place the tenant where it was"
            raise Unavailable(f"{error} The move has not ended, and {text}.") from error
        await self._tidy()
        return moved

    @property
    def _placed(self) -> Placed:
        placements = self._backends.placements
        return placements.map.tenants.get(self._tenant) or Placed(Place(placements.index_of(self._tenant)))

    def _partition(self, place: Place) -> Partition:
        return self._backends.partitions[place.partition]

    def _contents(self, place: Place) -> Contents:
        contents = self._partition(place).contents
        if contents is None or not contents.notes_changes:
            raise CommandError("the plugin of this store cannot move a tenant to another partition")
        return contents

    # The map

    async def _change(self, alter: Callable[[Placed, int], Placed], *, expected: Sequence[Move | None]) -> Placed:
        """Make a new version of the map. `alter` gets the tenant's part and the version.

        Raises `CommandError` if the tenant's move is not an expected one, or another tenant is being moved.
        """
        backends = self._backends
        stores = [each.store for each in backends.partitions]
        for _ in range(_ATTEMPTS):
            state = stores[0].begin(times.now())
            known = await read_map(state, len(stores))
            others = {tenant: placed for tenant, placed in known.tenants.items() if tenant != self._tenant}
            names = [each.name for each in backends.partitions]
            if (problem := unfinished(msgspec.structs.replace(known, tenants=others), names)) is not None:
                raise CommandError(problem)
            backends.placements.use(known, stores)
            placed = self._placed
            if placed.move not in expected:
                raise CommandError(f"another command has moved {self._tenant!r} meanwhile")
            # By the clock, so that a map that was lost and made again is newer than all that stores know.
            version = max(known.version + 1, times.now())
            tenants = known.tenants | {self._tenant: alter(placed, version)}
            new = PlacementMap(len(stores), version, tenants)
            await put_map(state, new)
            try:
                await stores[0].commit(state)
            except WriteConflict:
                continue
            backends.placements.use(new, stores)
            return self._placed
        raise CommandError("the map of placements keeps changing; run the command again")

    async def _set_move(self, move: Move | None, expected: Move | None) -> None:
        await self._change(lambda placed, _: msgspec.structs.replace(placed, move=move), expected=[expected])

    # The steps

    async def _move(self, index: int) -> Moved:
        source = self._placed.place
        for place in (source, Place(index)):
            self._contents(place)

        def begin(placed: Placed, version: int) -> Placed:
            return msgspec.structs.replace(placed, move=Move(source, Place(index, version)))

        move = (await self._change(begin, expected=[None])).move
        assert move is not None
        try:
            began = time.monotonic()
            await self._copy_all(move)
            await self._catch_up(source)
            for _ in range(_ROUNDS):
                if await self._copy_changes(move) <= _FEW:
                    break
            await asyncio.sleep(max(0.0, began + TIMING.placements + _TO_LEARN - time.monotonic()))
            halted_at = time.monotonic()
            owned = await self._halt(move)
        except BaseException:
            with suppress(CommandError):
                await self._drop(move)
            raise
        await self._end(owned)
        return Moved(self._copied, time.monotonic() - halted_at)

    async def _halt(self, move: Move) -> Move:
        """Refuse events of the tenant, copy the rest, and give the tenant to the target."""
        halted = msgspec.structs.replace(move, halted=True)
        await self._set_move(halted, move)
        await asyncio.sleep(_TO_LEARN)
        await self._partition(move.source).store.fence(self._backends.placements.map.version)
        await self._catch_up(move.source)
        while await self._copy_changes(move):
            pass
        owned = msgspec.structs.replace(halted, owned=True)

        def give(placed: Placed, _: int) -> Placed:
            return Placed(move.target, [move.source, *placed.former], owned)

        await self._change(give, expected=[halted])
        return owned

    async def _end(self, move: Move) -> None:
        """Take events of the tenant at the target."""
        await asyncio.sleep(_TO_LEARN)
        await self._partition(move.target).store.fence(self._backends.placements.map.version)
        await self._set_move(None, move)
        await self._contents(move.source).note_changes(0)

    async def _drop(self, move: Move) -> None:
        """Give up a move that was interrupted.

        The map says so first: a command that still runs the move, or has given the tenant to the target, keeps its
        entries. What is left of them in the target is found as in a former place.
        """
        await self._contents(move.source).note_changes(0)

        def give_up(placed: Placed, _: int) -> Placed:
            return Placed(placed.place, [move.target, *placed.former])

        await self._change(give_up, expected=[msgspec.structs.replace(move, halted=each) for each in (False, True)])
        await self._remove(move.target)

    async def _catch_up(self, place: Place) -> None:
        """Wait until all consumers with state have read the present records.

        One that derives records makes further ones for the others.
        """
        journal, names = self._partition(place).journal, [each.name for each in self._plugins.consumers]
        for _ in names:
            last = (await journal.extent()).last
            until = time.monotonic() + _TO_CATCH_UP
            while late := await self._late(place, names, last):
                if time.monotonic() > until:
                    raise CommandError(
                        f"{', '.join(late)} has records of partition {self._partition(place).name} to read first;"
                        " run the command again when a daemon has done that"
                    )
                await asyncio.sleep(QUICK_LOOK / 4)

    async def _late(self, place: Place, names: Sequence[str], last: int) -> list[str]:
        read = await positions_of(self._partition(place).journal)
        return [name for name in names if read.get(name, 0) < last]

    # The state

    async def _copy_all(self, move: Move) -> None:
        if not move.source.namespace:
            await self._learn(move.source)
        contents = self._contents(move.source)
        await contents.note_changes(move.target.namespace)
        async for part in parts_of(contents):
            await self._copy(move, self._ours(move.source, part))
            await self._copy_changes(move)  # the source notes a limited number of them

    async def _copy_changes(self, move: Move) -> int:
        """Copy some of what has changed. Returns the number of changed keys, also of other tenants."""
        contents = self._contents(move.source)
        keys = await contents.take_changes(move.target.namespace, _PAGE)
        if keys and not move.source.namespace:
            await self._learn(move.source)
        entries = self._ours(move.source, [Entry(key) for key in keys])
        found = await contents.find(entries)
        await self._copy(move, [each for each in found if each is not None])
        gone = [entry.key for entry, each in zip(entries, found, strict=True) if each is None]
        if gone:
            await self._contents(move.target).remove([Entry(_renamed(key, move.target.namespace)) for key in gone])
        return len(keys)

    async def _copy(self, move: Move, entries: Sequence[Entry]) -> None:
        if entries:
            namespace = move.target.namespace
            renamed = [msgspec.structs.replace(each, key=_renamed(each.key, namespace)) for each in entries]
            await self._contents(move.target).replace(renamed)
            self._copied += len(entries)

    def _ours(self, place: Place, entries: Sequence[Entry], *, surely: bool = False) -> list[Entry]:
        """The entries of the tenant, and those whose tenant is unknown unless `surely`."""
        if place.namespace:
            return [entry for entry in entries if namespace_of(entry.key) == place.namespace]
        some = [
            entry
            for entry in entries
            if not namespace_of(entry.key) and kind_of(entry.key) not in SINK_KINDS and entry.key != MAP_KEY
        ]
        for entry in some:
            self._known.learn(entry)
        wanted = {_OURS} if surely else {_OURS, None}
        return [entry for entry, owner in zip(some, self._known.owners(some), strict=True) if owner in wanted]

    async def _learn(self, place: Place) -> None:
        """Learn the keys of all tenants from the records that are new since the last call, and from plugins."""
        partition, after = self._partition(place), self._learned.get(place.partition)
        if after is None:
            self._known.add("", [])
            for store in dict.fromkeys([self._backends.partitions[0].store, partition.store]):
                for tenant, texts in (await self._plugins.hooks.state_parts(store)).items():
                    self._known.add(tenant, texts)
            after = 0
        last = await partition.journal.last()
        bar = ProgressBar(last - after, "records read", quiet=self._quiet or last - after <= _MANY)
        async for page in pages_of(partition.journal, after, last):
            for record in page:
                self._known.add(record.envelope().tenant or "", texts_in(record.decode()))
            bar.show(page[-1].position - after)
        bar.close()
        self._learned[place.partition] = last

    async def _tidy(self) -> None:
        """Remove what former places have of the tenant. Entries whose tenant is unknown stay until they expire."""
        for place in self._placed.former:
            await self._remove(place)

    async def _remove(self, place: Place) -> None:
        contents = self._contents(place)
        if not place.namespace:
            await self._learn(place)
        async for keys in _all_keys(contents, whole=not place.namespace):
            for first in range(0, len(keys), _PAGE):
                if ours := self._ours(place, keys[first : first + _PAGE], surely=True):
                    await contents.remove(ours)


async def _all_keys(contents: Contents, *, whole: bool) -> AsyncIterator[Sequence[Entry]]:
    """All entries in pages; without `whole`, their keys alone."""
    if whole:  # a value may tell its tenant
        async for entries in contents.entries():
            yield entries
    else:
        async for keys in contents.all_keys():
            yield [Entry(key) for key in keys]


def _renamed(key: str, namespace: int) -> str:
    return f"{kind_of(key)}@{namespace}:{key.partition(':')[2]}"


async def place(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    tenant = arguments.tenant
    async with open_backends(config, plugins) as backends:
        if len(backends.partitions) == 1:
            raise CommandError("this store has a single partition, so there is no other place for a tenant")
        target = find_partition(arguments.partition, backends.partitions, "tenants")
        with closing(TenantMove(backends, plugins, tenant, quiet=arguments.quiet or arguments.json)) as move:
            moved = await move.run(backends.partitions.index(target))
    seconds = None if moved is None else round(moved.seconds, 3)
    entries = None if moved is None else moved.entries
    told = {"tenant": tenant, "partition": target.name, "entries": entries, "refusedSeconds": seconds}
    text = f"{printable(tenant)} is in partition {target.name}"
    if moved is not None:
        text += f" now, with {moved.entries} entries of state; events were refused for {moved.seconds:.1f} s"
    write_result(told, lines=[text], as_json=arguments.json)
