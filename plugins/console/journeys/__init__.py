"""Journeys for the operators' page: sessions, touchpoints and orders of one order, user or visitor, made on request.

A request reads the journal within limits, one request at a time. Plugins lead it to the records, and explain them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from ingestd.api.backend import Partition
from ingestd.api.errors import BadRequest, Forbidden, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.journeys import JourneyLead, JourneyPart, JourneyQuery, JourneyRecords
from ingestd.hooks.caller import HookFailure, Hooks
from ingestd.storage.placements import Placements
from ingestd.support.record_head import read_head
from ingestd.support.unusable_ids import UnusableIds

from ..disclosure import Disclosure
from .body import body_of
from .people import OrderRecords, PersonRecords
from .search import JournalSearch, SearchLimits

__all__ = ["JourneyReader", "SearchLimits", "SearchQueue"]

_MAX_WAITING = 4
_RETRY_AFTER = 5  # seconds


class SearchQueue:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Search when the searches before it are done. Raises `Unavailable` if too many wait already."""
        if self._waiting >= _MAX_WAITING:
            raise Unavailable("Too many requests for this wait already. Try again later.", retry_after=_RETRY_AFTER)
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


log = logging.getLogger("ingestd.journeys")

_LONGEST = 1000  # characters of an id that is searched
_FOR_ORDER = 0.4  # share of the limits for the records of an order; the rest is for its visitors

_A = TypeVar("_A")


class JourneyReader:
    """`hooks` returns the hooks of the present generation, and `disclosure` what the page may show at present."""

    def __init__(
        self,
        hooks: Callable[[], Hooks],
        partitions: Sequence[Partition],
        placements: Placements,
        unusable_ids: UnusableIds,
        *,
        disclosure: Callable[[], Disclosure],
        limits: SearchLimits = SearchLimits(),  # noqa: B008 - it cannot change
    ) -> None:
        self._hooks = hooks
        self._partitions = partitions
        self._placements = placements
        self._unusable_ids = unusable_ids
        self._disclosure = disclosure
        self._limits = limits
        self._queue = SearchQueue()

    async def render(self, query: JourneyQuery, before: int | None = None) -> bytes:
        """The journey as JSON. `before` is the position before which the search for visitors' records starts.

        Raises `BadRequest`, `Forbidden`, `Unavailable`.
        """
        disclosure = self._disclosure()
        if disclosure.level == "none":
            raise Forbidden('This page shows no journeys, because of the option [ops] show_data = "none".')
        self._check(query)
        async with self._queue.wait():
            partition = await self._partition(query)
            journey = _Journey(partition.journal, self._unusable_ids, query, self._limits)
            leads, failed = self._sorted(await self._hooks().find_journey(query, partition.store))
            known = [lead for some in leads for lead in some]
            await journey.read(known, before)
            for journal in self._former_journals(query.tenant or next((lead.tenant for lead in known), None)):
                await journey.read_former(journal, known)
            parts, failed_too = self._sorted(await self._hooks().explain_journey(journey.found(), partition.store))
            notes = [f"The plugin {each} has failed. The log has the reason." for each in {**failed, **failed_too}]
            return await asyncio.to_thread(journey.encode, parts, notes, disclosure)

    def _former_journals(self, tenant: str | None) -> Sequence[Journal]:
        """The journals of the partitions that a tenant was moved from, the latest first."""
        former = [] if tenant is None else self._placements.indices_of(tenant)[1:]
        return [self._partitions[index].journal for index in former]

    async def _partition(self, query: JourneyQuery) -> Partition:
        """The partition of the journey. Without a tenant, a plugin must lead to it. Raises `BadRequest`."""
        if query.tenant is not None or len(self._partitions) == 1:
            return self._partitions[self._placements.index_of(query.tenant or "")]
        within_reach = [partition for partition in self._partitions if partition.problem() is None]
        asked = [self._hooks().find_journey(query, partition.store) for partition in within_reach]
        answers = [self._sorted(each)[0] for each in await asyncio.gather(*asked)]
        led = [each for each, leads in zip(within_reach, answers, strict=True) if any(leads)]
        if len(led) == 1:
            return led[0]
        why = "Several tenants have this id" if led else "No plugin knows the tenant of this id"
        raise BadRequest(f"{why}, and the store has several partitions. Give the tenant too.")

    def _check(self, query: JourneyQuery) -> None:
        given = [each for each in (query.order, query.user, query.visitor) if each]
        if len(given) != 1:
            raise BadRequest("Give one of the parameters order, user and visitor.")
        if any(len(each) > _LONGEST for each in (given[0], query.tenant or "")):
            raise BadRequest(f"An id has at most {_LONGEST} characters.")
        if given[0] in self._unusable_ids:
            raise BadRequest("This is a word that clients send for no id. Many visitors may have sent it.")

    def _sorted(self, answers: Sequence[tuple[str, _A | HookFailure]]) -> tuple[list[_A], dict[str, None]]:
        """The answers, and the names of the plugins that failed."""
        given: list[_A] = []
        failed: dict[str, None] = {}
        for plugin, answer in answers:
            if isinstance(answer, HookFailure):
                log.warning("%s: %r", answer, answer.__cause__)
                failed[plugin] = None
            else:
                given.append(answer)
        return given, failed


class _Journey:
    """The search for one journey, and its result."""

    def __init__(self, journal: Journal, unusable_ids: UnusableIds, query: JourneyQuery, limits: SearchLimits) -> None:
        self._journal = journal
        self._unusable_ids = unusable_ids
        self._query = query
        self._limits = limits
        self._searches: list[JournalSearch] = []
        self._people: Sequence[JourneyLead] = ()
        self._oldest = 0
        self._formers: list[_Journey] = []
        """The same search in the journals of the tenant's former partitions, the latest first."""
        self._next: int | None = None
        """The position before which a later request may go on; None if the search has reached the oldest record."""

    async def read(self, leads: Sequence[JourneyLead], before: int | None) -> None:
        extent = await self._journal.extent()
        self._oldest = extent.first
        before = extent.last + 1 if before is None else min(before, extent.last + 1)
        visitors: set[tuple[str | None, str]] = {(lead.tenant, each) for lead in leads for each in lead.visitors}
        user, tenant = self._query.user, self._query.tenant
        if self._query.visitor is not None:
            visitors.add((tenant, self._query.visitor))
        elif self._query.order is not None:
            records = _deciding(await self._read_order(self._query.order, leads, before))
            people = [each for record in records for each in _people_of(record, self._unusable_ids)]
            visitors |= {(each, visitor) for each, visitor, _ in people}
            user = next((user for _, _, user in people if user is not None), None)
            tenant = next((each for each, _, _ in people), tenant)
            before = min(before, max((record.position for record in records), default=0) + 1)
        self._people = _leads(visitors)
        if visitors or user is not None:
            await self._read_people(PersonRecords(visitors, user, tenant, self._unusable_ids), before)

    async def read_former(self, journal: Journal, leads: Sequence[JourneyLead]) -> None:
        """Go on in the journal of a former partition, once the search has reached the oldest record."""
        if self._next is None:
            former = _Journey(journal, self._unusable_ids, self._query, self._limits)
            await former.read([*leads, *self._people], None)
            self._formers.append(former)
            self._people, self._oldest = former._people, 0

    async def _read_order(self, order: str, leads: Sequence[JourneyLead], before: int) -> list[Record]:
        """Read the records of the order: from its position on, or backward if no plugin knows the position."""
        search = self._begin(self._limits.part(_FOR_ORDER))
        known = [lead for lead in leads if lead.position is not None]
        for lead in known:
            assert lead.position is not None
            matcher = OrderRecords(order, lead.tenant)
            after = max(lead.position, self._oldest) - 1
            await search.forward(after, await self._journal.last(), matcher, search.derived + lead.derived)
        if not known:
            self._went(await search.backward(before, self._oldest, OrderRecords(order, self._query.tenant)))
        return [search.found[position] for position in sorted(search.found)]

    async def _read_people(self, matcher: PersonRecords, before: int) -> None:
        search = self._begin(self._limits if self._query.order is None else self._limits.part(1 - _FOR_ORDER))
        self._went(await search.backward(before, self._oldest, matcher))
        self._people = _leads(matcher.visitors)

    def _went(self, reached: int) -> None:
        self._next = reached if reached > self._oldest else None

    def _begin(self, limits: SearchLimits) -> JournalSearch:
        search = JournalSearch(self._journal, limits)
        self._searches.append(search)
        return search

    def found(self) -> JourneyRecords:
        found = {position: record for search in self._searches for position, record in search.found.items()}
        before = [record for former in reversed(self._formers) for record in former.found().records]
        records = [*before, *(found[position] for position in sorted(found))]
        return JourneyRecords(self._query, self._people, records, self._oldest)

    def encode(self, parts: Sequence[JourneyPart], notes: Sequence[str], disclosure: Disclosure) -> bytes:
        """The journey as JSON. A thread beside the event loop calls this."""
        searches = [search for journey in (self, *self._formers) for search in journey._searches]
        searched = {
            "records": sum(each.records for each in searches),
            "bytes": sum(each.bytes for each in searches),
            "oldestAt": min((each.oldest_at for each in searches if each.oldest_at is not None), default=None),
            "limit": next((each.limit for each in searches if each.limit is not None), None),
            "next": self._next,
        }
        return msgspec.json.encode(body_of(self.found(), parts, searched, notes, disclosure))


def _deciding(records: Collection[Record]) -> list[Record]:
    """The records of an order that name its people. The visitor of a refund is mostly the shop's backend."""
    attributions = [each for each in records if each.type == "attribution"]
    return attributions or [each for each in records if b'"Order Completed"' in each.body]


def _people_of(record: Record, unusable_ids: UnusableIds) -> Iterator[tuple[str, str, str | None]]:
    """The tenant, each visitor and the user in a record of an order."""
    head, touchpoints = read_head(record.body), record.decode().get("touchpoints", ())
    visitors = [head.visitor, *(each.get("anonymousId") for each in touchpoints if isinstance(each, dict))]
    user = None if head.user is None or head.user in unusable_ids else head.user
    for visitor in dict.fromkeys(visitors):
        if isinstance(visitor, str) and visitor not in unusable_ids and head.tenant is not None:
            yield head.tenant, visitor, user


def _leads(visitors: Collection[tuple[str | None, str]]) -> list[JourneyLead]:
    tenants: dict[str, list[str]] = {}
    for tenant, visitor in visitors:
        if tenant is not None:
            tenants.setdefault(tenant, []).append(visitor)
    return [JourneyLead(tenant, sorted(each)) for tenant, each in sorted(tenants.items())]
