"""`ingestd forget`: removes a person from the state and the journal, and notifies the sinks.

The command works in this order, so that an interrupted command can run again:

1. It appends an `erasure` record with the ids of the person, and notes it for running daemons, which then drop texts
   of people from their memory.
2. The plugins delete their state of the person.
3. It blanks the person's records before the erasure, their copies in the dead letters of sinks, and reasons of sinks.
4. It notes that for running daemons, which read records in their hands again.

Links and records name a user's visitors as long as they exist. After that, the erasure names them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from ingestd.api.backend import MissingPartitions
from ingestd.api.errors import CommandError, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.output import write_result
from ingestd.api.privacy import Person
from ingestd.api.store import Store, use_namespaces
from ingestd.api.times import format_time, now
from ingestd.config import Config
from ingestd.consumers.erasures import note_erasure
from ingestd.hooks.caller import Hooks
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends
from ingestd.support.ids import time_uuid
from ingestd.support.terminal import printable, table
from ingestd.support.unusable_ids import UnusableIds

from ..journal_reading import records_of
from ..lake_tables import lines_of_forget, until_of_lakes
from ..sinks.partitions import in_each
from .dead_letters import DeadLetters
from .traces import ERASURE, Traces, blanked

__all__ = ["Forgetting", "forget"]

_RECEIVED = {"event", "identify"}  # types of records that callers sent; consumers derive the others

_Change = tuple[Record, bytes]

_BATCH = 200  # records blanked, or visitors forgotten, in one commit
_BATCH_BYTES = 1024 * 1024  # a commit whose records reach this size has fewer of them
_ATTEMPTS = 5


async def forget(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async with open_backends(config, plugins) as backends:
        await backends.recover()  # otherwise the next daemon would append unfinished records of the person
        tenant = arguments.tenant or await _only_tenant(backends)
        unusable_ids = UnusableIds(config.ids.unusable)
        # A tenant that was moved has records in several partitions.
        parts = [
            Forgetting(
                plugins.hooks, partition.store, partition.journal,
                Traces(tenant, unusable_ids, user_id=arguments.user, anonymous_id=arguments.anonymous),
            )
            for partition in backends.all_of_tenant(tenant)
        ]  # fmt: skip
        traces = parts[0].traces
        for each in parts:
            each.traces.learn_from(traces)
            await each.learn()
            traces.learn_from(each.traces)
        for each in parts:
            each.traces.learn_from(traces)
        others = ", ".join(sorted(traces.tenants - {tenant}))
        if others and arguments.tenant is None:
            raise CommandError(f"the journal has records of several tenants ({tenant}, {others}): choose with --tenant")
        counts: Counter[str] = Counter()
        if not arguments.dry_run:
            await parts[0].forget_leftovers(backends)
        for each in reversed(parts):  # the present state and records name the person, so they are forgotten last
            counts.update(await (each.count() if arguments.dry_run else each.run()))
        if others and tenant not in traces.tenants and not counts.total():
            raise CommandError(f"there are no records of tenant {tenant}; the journal has records of {others}")
    lakes = until_of_lakes(config, plugins) if counts.total() else {}
    told = {
        "tenant": tenant,
        "userId": traces.user_id,
        "anonymousIds": traces.anonymous_ids,
        "dryRun": arguments.dry_run,
        "erasure": next((each.erasure for each in parts if each.erasure is not None), None),
        "counts": counts,
        "lakes": lakes,
    }
    lines = [*_for_people(traces, counts, dry_run=arguments.dry_run)]
    if not arguments.dry_run:
        lines += lines_of_forget(lakes)
    write_result(told, lines=lines, as_json=arguments.json)


class Forgetting:
    """The erasure of one person: call `learn` first, then either `count` or `run`."""

    def __init__(self, hooks: Hooks, store: Store, journal: Journal, traces: Traces) -> None:
        self.erasure: str | None = None
        """The id of the erasure record, None before it is appended."""
        self._hooks = hooks
        self._store = store
        self._journal = journal
        self.traces = traces
        self._letters = DeadLetters(store, journal, traces)
        self._learned = 0

    async def learn(self) -> None:
        """Collect the ids of the person from state, dead letters and the journal up to its present end."""
        await self._ask()
        await self._letters.learn()
        await self._read_on()

    async def count(self) -> Counter[str]:
        """The numbers of things to forget, by kind."""
        counts = await self._remembered()
        counts["records"] = await self._count()
        counts["dead letters"] = await self._letters.count()
        return counts

    async def run(self) -> Counter[str]:
        """Forget the person. Returns the numbers of forgotten things by kind. Without any, nothing is written."""
        remembered = await self._remembered()
        if not (remembered.total() or await self._count(at_most=1) or await self._letters.count()):
            return Counter(records=0)
        while True:
            position = await self._announce()
            known = len(self.traces)
            await self._read_on()
            if len(self.traces) == known:
                break
            await self._ask()  # a visitor was linked to the person meanwhile, and the erasure must name it too
        await self._note("begun")  # a run that is killed leaves nothing in the memory of daemons either
        counts: Counter[str] = Counter()
        for person in self._persons():
            counts.update(await self._forget(person, self._store))
        for name, count in remembered.items():  # a consumer may have read the erasure first and deleted its state
            counts[name] = max(counts[name], count)
        counts["dead letters"] = await self._letters.blank()
        counts["records"] = await self._blank(0, position)
        # Records that consumers derived meanwhile from records that were not blank yet.
        counts["records"] += await self._blank(position, await self._journal.last(), derived=True)
        counts["dead letters"] += await self._letters.blank()  # and new dead letters of such records
        await self._letters.blank_failures()
        await self._note("blanked")
        return counts

    async def _ask(self) -> None:
        user_id = self.traces.user_id
        if user_id is not None:
            self.traces.add(await self._hooks.find_visitors(self.traces.tenant, user_id, self._store))

    async def _read_on(self) -> None:
        last = await self._journal.last()
        async for record in records_of(self._journal, self._learned, last):
            self.traces.learn(record)
        self._learned = last

    async def _announce(self) -> int:
        """Append the erasure record. Returns its position."""
        at, traces = now(), self.traces
        self.erasure = time_uuid()
        body = msgspec.json.encode({
            "id": self.erasure,
            "type": ERASURE,
            "tenant": traces.tenant,
            "erasedAt": format_time(at),
            "userId": traces.user_id,
            "anonymousIds": traces.anonymous_ids,
        })  # fmt: skip
        return await self._journal.commit([Record(ERASURE, at, body)], self._store.begin(at))

    async def _note(self, phase: str) -> None:
        state = self._store.begin(now())
        await note_erasure(state, f"{self.erasure} {phase}")
        await self._store.commit(state)

    # The state of plugins

    def _persons(self) -> Iterator[Person]:
        """The person with a part of their visitors at a time."""
        traces = self.traces
        visitors, former = traces.visitors, traces.former
        for start in range(0, max(len(visitors), len(former), 1), _BATCH):
            end = start + _BATCH
            yield Person(traces.tenant, traces.user_id, visitors[start:end], former[start:end])

    async def _remembered(self) -> Counter[str]:
        """The numbers of things that plugins would delete."""
        user_id = self.traces.user_id
        own: Mapping[str, int] = {}
        if user_id is not None:
            own = await self._remembered_of(Person(self.traces.tenant, user_id, [], []))
        counts = Counter(own)
        for person in self._persons():
            counts.update(await self._remembered_of(person))
            counts.subtract(own)  # each part has the user's own state too
        return counts

    async def _remembered_of(self, person: Person) -> Mapping[str, int]:
        state = self._store.begin(now())
        try:
            return await self._hooks.forget_person(person, state)
        finally:
            self._store.discard(state)

    async def forget_leftovers(self, backends: Backends) -> None:
        """Forget what moves of tenants have left of the person in other places, or have copied there with others."""
        placements, tenant = backends.placements, self.traces.tenant
        present, *former = placements.places_of(tenant)
        try:
            for place in dict.fromkeys([*former, *placements.all_places()]):
                if place != present:
                    use_namespaces(placements.namespaces(tenant, place.namespace))
                    for person in self._persons():
                        await self._forget(person, backends.partitions[place.partition].store)
        finally:
            use_namespaces(placements.namespaces(tenant, present.namespace))

    async def _forget(self, person: Person, store: Store) -> Counter[str]:
        for _ in range(_ATTEMPTS):
            state = store.begin(now())
            counts = await self._hooks.forget_person(person, state)
            try:
                await store.commit(state)
            except WriteConflict:
                continue
            return counts
        raise CommandError("the state of this person keeps changing; run the command again")

    # The journal

    async def _count(self, at_most: int | None = None) -> int:
        after = count = 0
        while after < self._learned and (at_most is None or count < at_most):
            batch, after = await self._next_batch(after, self._learned, at_most or _BATCH)
            count += len(batch)
        return count

    async def _blank(self, after: int, upto: int, *, derived: bool = False) -> int:
        count = 0
        while after < upto:
            batch, end = await self._next_batch(after, upto, _BATCH, derived=derived)
            done = await self._journal.replace(batch) if batch else 0
            count += done
            if done == len(batch):  # otherwise a record has changed since it was read: repeat this batch
                after = end
        return count

    async def _next_batch(
        self, after: int, upto: int, limit: int, *, derived: bool = False
    ) -> tuple[list[_Change], int]:
        """The next records of the person, each with its blanked body, and the position up to which they were read.

        `derived` selects only records that consumers derived.
        """
        batch: list[_Change] = []
        size = 0
        async for record in records_of(self._journal, after, upto):
            body = None if derived and record.type in _RECEIVED else blanked(record, self.traces)
            if body is not None:
                batch.append((record, body))
                size += len(record.body) + len(body)
                if len(batch) == limit or size >= _BATCH_BYTES:
                    return batch, record.position
        return batch, upto


async def _only_tenant(backends: Backends) -> str:
    """The tenant if there is one. `forget` finds other tenants of its partition. Raises `CommandError`."""
    missing = MissingPartitions(backends.partitions)
    found = await in_each(backends.partitions, missing, lambda each: _first_tenant(each.journal))
    tenants = {tenant for tenant in found if tenant is not None}
    if len(tenants) > 1:
        known = ", ".join(sorted(tenants))
        raise CommandError(f"the journals have records of several tenants ({known}, …): choose with --tenant")
    missing.check("the tenant is not known: give it with --tenant")
    if not tenants:
        raise CommandError("the journal is empty: give the tenant with --tenant")
    return tenants.pop()


async def _first_tenant(journal: Journal) -> str | None:
    async for record in records_of(journal, 0, await journal.last()):
        tenant = record.decode().get("tenant")
        if isinstance(tenant, str):
            return tenant
    return None


def _for_people(traces: Traces, counts: Counter[str], *, dry_run: bool) -> Iterator[str]:
    kind, named = ("visitor", traces.anonymous_ids[0]) if traces.user_id is None else ("user", traces.user_id)
    who = f"{kind} {printable(named)}"
    if not counts.total():
        yield f"nothing to forget: {who} of {traces.tenant}"
        return
    yield f"{'would forget' if dry_run else 'forgotten'}: {who} of {traces.tenant}"
    found = sorted(counts.items())
    if traces.user_id is not None:
        found.append(("visitors", len(traces.anonymous_ids)))
    for line in table([(name, str(count)) for name, count in found]):
        yield f"  {line}"
