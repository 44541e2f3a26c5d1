"""The consumer that reads the journal, remembers touchpoints and links, and decides each order once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from ingestd.api.record_batch import length_of
from ingestd.api.store import State, state_key
from ingestd.support.pace import Pace
from ingestd.support.unusable_ids import UnusableIds

from ..sources import Channels
from .amounts import currency_code
from .arrivals import Arrivals
from .journeys import LINK, REFERRERS, TOUCHES, VISITORS, Journeys, Limits
from .marks import DecidedOrder, Marks, Order, Refund, mark_key
from .models import Model
from .orders import MAX_PUBLIC_REVERSALS, decide, reverse, supersede
from .people import CREDITED, USER, VISITOR, People
from .reading import Erasure, Seen, read
from .rollups import Change, add_all, order_change, reversal_change, superseded_change, within_room
from .touches import Touch
from .untrusted import add_untrusted, count_public
from .visits import Visits
from .waiting import MAX_WAITING, WAITING, take_waiting, wait

__all__ = ["AttributionConsumer", "Rules", "Tally"]

log = logging.getLogger("ingestd.attribution")

_TURN = 0.0002  # seconds after which the consumer gives way to events
_PART = 32  # records whose state is loaded at a time: each may need a megabyte of state
_MOST_STATE = 8 << 20  # bytes of state after which a step ends
_MOST_NEW = 2 << 20  # bytes of appended records after which a step ends


class Rules(NamedTuple):
    """The rules by which orders are decided. Times are in milliseconds."""

    model: Model
    half_life: int
    limits: Limits
    order_memory: int
    arrivals: Arrivals
    channels: Channels
    signed_orders: bool = False
    """Whether orders, refunds and cancellations of public keys decide nothing."""


class Tally(NamedTuple):
    """The counters: orders by result, refunds and cancellations by result, and ignored amounts."""

    order: Callable[[str], None]
    reversal: Callable[[str], None]
    amounts_ignored: Callable[[int], None]
    """Amounts that are too large to count."""


class AttributionConsumer(Consumer):
    """Decides orders. The result is a function of the rules and of the records before the order in the journal."""

    name = "attribution"
    start = "beginning"
    max_records = 1000
    linger = 0.05  # touchpoints of a step share pages of the store; but events wait for the commit of a long step
    pause = 0.001
    """Seconds for events between two turns, while the consumer keeps up with the journal."""

    def __init__(self, rules: Rules) -> None:
        self.unusable_ids = UnusableIds()
        """Texts that are not ids of a visitor, a user or an order."""
        self.tally = Tally(lambda result: None, lambda result: None, lambda number: None)
        self._rules = rules
        self._visits = Visits(rules.limits.horizon)

    def for_partition(self, name: str) -> AttributionConsumer:
        consumer = AttributionConsumer(self._rules)
        consumer.unusable_ids, consumer.tally = self.unusable_ids, self.tally
        return consumer

    async def process(self, records: Sequence[Record], step: Step) -> None:
        arrivals, unusable_ids = self._rules.arrivals, self.unusable_ids
        found: list[tuple[int, Seen | Erasure]] = []
        self._visits.begin(records[0].position)
        await step.give_way()
        pace = Pace(_TURN, partial(step.give_way, 0 if len(records) == self.max_records else self.pause))
        for index, record in enumerate(records):
            if (each := read(record, arrivals, unusable_ids, self._visits)) is not None:
                found.append((index, each))
                if isinstance(each, Erasure):
                    self._visits.clear()
                elif each.touch is not None:
                    self._visits.expect(each.tenant, each.anonymous_id, each.touch)
            await pace.give_way()
        changes: list[Change] = []
        step.done = await self._apply_all(records, found, step, changes, pace)
        await add_all(step.state, changes, pace.give_way)
        self._visits.end(records[(len(records) if step.done is None else step.done) - 1].position)

    async def _apply_all(
        self,
        records: Sequence[Record],
        found: Sequence[tuple[int, Seen | Erasure]],
        step: Step,
        changes: list[Change],
        pace: Pace,
    ) -> int | None:
        """Apply events and erasures, each with the index of its record, until the step is large.

        Returns the number of records that are done, or None if all are done.
        """
        size = 0
        for start in range(0, len(found), _PART):
            part = found[start : start + _PART]
            await _load(step.state, [each for _, each in part if isinstance(each, Seen)], self._visits)
            for index, each in part:
                await pace.give_way()
                before = len(step.records)
                if isinstance(each, Erasure):
                    journeys = Journeys(step.state, self._rules.limits, 0)
                    await journeys.forget(each.tenant, each.anonymousIds, each.userId)
                    self._visits.clear()
                else:
                    await self._apply(each, step, changes)
                    # The journal is in the order of its times, and what decided an order from a file may be old.
                    now = records[index].at
                    step.records[before:] = [msgspec.structs.replace(new, at=now) for new in step.records[before:]]
                size += length_of(step.records[before:])
                # An order may have read megabytes of touchpoints.
                if size > _MOST_NEW or (len(step.records) > before and step.state.size > _MOST_STATE):
                    return index + 1
            if step.state.size > _MOST_STATE:
                return index + 1
        return None

    async def _apply(self, seen: Seen, step: Step, changes: list[Change]) -> None:
        # The clock is the record's time of receipt, so the result does not depend on when this runs.
        journeys = Journeys(step.state, self._rules.limits, seen.received_at)
        if seen.amounts_ignored:
            self.tally.amounts_ignored(seen.amounts_ignored)
        # An order's own campaign is not a touchpoint of that order, and a link counts from the next record on.
        if seen.order is not None:
            await self._decide(seen.order, journeys, step, changes)
        elif seen.refund is not None:
            await self._refund(seen.refund, step, changes)
        is_arrival = seen.touch is not None and await self._arrive(seen, seen.touch, journeys)
        if seen.user_id is not None:
            await journeys.link(seen.tenant, seen.anonymous_id, seen.user_id)
        elif is_arrival:
            await journeys.renew(seen.tenant, seen.anonymous_id)

    async def _arrive(self, seen: Seen, touch: Touch, journeys: Journeys) -> bool:
        """Remember a touchpoint. Returns False for a referrer in a session that has a touchpoint."""
        visitor = seen.tenant, seen.anonymous_id
        if touch.named_by == "referrer" and self._visits.has_source(*visitor, touch, seen.received_at):
            return False
        continued = await journeys.touch(*visitor, touch, seen.excluded)
        if continued is None:
            self._visits.forget(*visitor)
        elif self._visits.is_new(*visitor, continued):
            self._visits.learn(*visitor, continued, await journeys.room(*visitor))
        return touch.named_by != "referrer" or continued is None

    async def _decide(self, order: Order, journeys: Journeys, step: Step, changes: list[Change]) -> None:
        rules = self._rules
        if rules.signed_orders and not order.signed:
            self.tally.order("untrusted")
            await add_untrusted(step.state, order)
            return
        marks = Marks(step.state, rules.order_memory)
        earlier = await marks.of(order)
        if earlier is not None and not earlier.yields_to(order):
            if earlier.same_value(order):
                self.tally.order("repeated")
                return
            self.tally.order("conflict")
            log.warning(
                "the order %r of %s was sent again with another value; its attribution %s keeps the first value",
                order.order_id, order.tenant, earlier.attribution_id, extra=_about(order),
            )  # fmt: skip
            return
        has_visitor = order.anonymous_id not in self.unusable_ids
        if order.user_id is None and has_visitor:
            order = msgspec.structs.replace(order, user_id=await journeys.user(order.tenant, order.anonymous_id))
        # An unusable id has no journey. State from before it became unusable does not count either.
        user_id = None if order.user_id is None or order.user_id in self.unusable_ids else order.user_id
        visitor = order.anonymous_id if has_visitor else None
        if not order.signed and not await self._has_room(order, visitor, user_id, step):
            return
        people = People(step.state, rules.order_memory)
        if earlier is not None:
            step.append(supersede(order, earlier, await people.of(order.tenant, earlier)))
            self.tally.reversal("superseded")
            _add(changes, superseded_change(order.tenant, earlier))
        visitors = await journeys.visitors(order.tenant, order.anonymous_id, user_id)
        visitors = [visitor for visitor in visitors if visitor not in self.unusable_ids]
        candidates = await journeys.candidates(order.tenant, visitors, order.at)
        record, mark, touchpoint = decide(
            order, candidates, rules.channels,
            model=rules.model, window=rules.limits.window, half_life=rules.half_life,
        )  # fmt: skip
        if earlier is not None:  # `attribution show` also finds the records of the superseded order
            superseded = (earlier.position, 1 + earlier.reversals + 1)
            mark = msgspec.structs.replace(mark, superseded=superseded, superseded_at=earlier.at)
        campaigns = [touch.campaign for touch, _ in candidates.touches]
        mark = within_room(await people.keep(order, mark, touchpoint), campaigns, len(record.body))
        step.append(record)
        changes.append(order_change(order.tenant, mark, campaigns))
        self.tally.order("attributed" if candidates.touches else "direct")
        for refund in await take_waiting(step.state, order, rules.order_memory):
            if mark.trusts(refund):
                mark = await self._reversed(refund, mark, step, changes)
            else:
                await self._ignore(refund, step)
        await marks.set(order, mark)

    async def _has_room(self, order: Order, visitor: str | None, user_id: str | None, step: Step) -> bool:
        """Whether an order of a public key is attributed. There is a limit of such orders a day."""
        if await count_public(step.state, order, visitor, user_id):
            return True
        self.tally.order("too_many")
        await add_untrusted(step.state, order, is_excess=True)
        return False

    async def _ignore(self, refund: Refund, step: Step) -> None:
        """Count a refund that is less trusted than its order, and remember it for `attribution show`."""
        self.tally.reversal("untrusted")
        await add_untrusted(step.state, refund)

    async def _refund(self, refund: Refund, step: Step, changes: list[Change]) -> None:
        if self._rules.signed_orders and not refund.signed:
            await self._ignore(refund, step)
            return
        if refund.order_id is None:
            self.tally.reversal("unknown_order")
            return
        marks = Marks(step.state, self._rules.order_memory)
        mark = await marks.of(refund)
        if mark is None:
            await self._wait(refund, step)
            return
        if not mark.trusts(refund):
            await self._ignore(refund, step)
            return
        after = await self._reversed(refund, mark, step, changes)
        if after is not mark:
            await marks.set(refund, after)
        if refund.signed and mark.signed is False:
            # A signed order may still supersede this one, so the refund waits for it. Refunds beyond `MAX_WAITING` do
            # not wait, and are not applied to the signed order.
            applied = msgspec.structs.replace(refund, is_applied=True)
            await wait(step.state, applied, self._rules.order_memory)

    async def _wait(self, refund: Refund, step: Step) -> None:
        result = await wait(step.state, refund, self._rules.order_memory)
        self.tally.reversal(result)
        if result == "too_many":
            log.warning(
                "the %s %s of the order %r of %s came before its order and is ignored: %d already wait for that order",
                refund.reason, refund.event_id, refund.order_id, refund.tenant, MAX_WAITING,
                extra=_about(refund),
            )  # fmt: skip

    async def _reversed(self, refund: Refund, mark: DecidedOrder, step: Step, changes: list[Change]) -> DecidedOrder:
        """Append the reversal, if the refund makes one. Returns the new mark of the order."""
        if mark.has_reversed(refund):
            self.tally.reversal("repeated")
            return mark
        currency = currency_code(mark.currency)
        if refund.currency is not None and currency is not None and refund.currency != currency:
            self.tally.reversal("other_currency")
            log.warning(
                "the %s %s of the order %r of %s is in another currency than the order, and reverses nothing",
                refund.reason, refund.event_id, refund.order_id, refund.tenant, extra=_about(refund),
            )  # fmt: skip
            return mark
        if refund.amount == 0:
            self.tally.reversal("no_amount")
            log.info(
                "the refund %s of the order %r of %s reverses nothing: its amount is 0, or its products have no price",
                refund.event_id, refund.order_id, refund.tenant,
            )  # fmt: skip
            return mark
        if not refund.signed and mark.public_reversals >= MAX_PUBLIC_REVERSALS:
            self.tally.reversal("too_many")
            await add_untrusted(step.state, refund, is_excess=True)
            return mark
        whom = await People(step.state, self._rules.order_memory).of(refund.tenant, mark)
        reversal = reverse(refund, mark, whom)
        if reversal is None:
            self.tally.reversal("nothing_left")
            return mark
        record, after = reversal
        step.append(record)
        self.tally.reversal("reversed")
        _add(changes, reversal_change(refund.tenant, mark, after))
        return after


def _add(changes: list[Change], change: Change | None) -> None:
    if change is not None:
        changes.append(change)


def _about(event: Order | Refund) -> dict[str, dict[str, str]]:
    """The `extra` of a log line: the id of the event in the journal."""
    return {"ingestd_fields": {"record_id": event.event_id}}


async def _load(state: State, found: Sequence[Seen], visits: Visits) -> None:
    """Load most of the state that these records need in one trip. Otherwise each read would be a trip."""
    orders = [each.order for each in found if each.order is not None]
    refunds = [each.refund for each in found if each.refund is not None]
    about_orders: list[Order | Refund] = [*orders, *(refund for refund in refunds if refund.order_id is not None)]
    users = {(each.tenant, each.user_id) for each in found} | {(order.tenant, order.user_id) for order in orders}
    arrived, new = set(), set()
    """The visitors with touchpoints, and those whose touchpoint may be the first of its session."""
    for each in found:
        if each.touch is not None:
            is_known = visits.has_source(each.tenant, each.anonymous_id, each.touch, each.received_at)
            if not is_known:
                new.add((each.tenant, each.anonymous_id))
            if not is_known or each.touch.named_by != "referrer":
                arrived.add((each.tenant, each.anonymous_id))
    visitors = {(each.tenant, each.anonymous_id) for each in found if each.refund is None}
    await state.load(
        keys=[
            *(state_key(LINK, *visitor) for visitor in visitors),
            *(mark_key(each.tenant, each.order_id, each.event_id) for each in about_orders),
            *(WAITING.key(each.order_id, each.tenant) for each in about_orders if each.order_id is not None),
            *(state_key(VISITOR, order.tenant, order.anonymous_id) for order in orders),
            *(state_key(USER, order.tenant, order.user_id) for order in orders if order.user_id is not None),
        ],
        sets=[
            *(state_key(VISITORS, tenant, user) for tenant, user in users if user is not None),
            *(state_key(TOUCHES, *visitor) for visitor in arrived),
            *(state_key(REFERRERS, *visitor) for visitor in new),
            *(state_key(CREDITED, order.tenant, order.anonymous_id) for order in orders),
        ],
    )
