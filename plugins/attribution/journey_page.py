"""The journey of an order, a user or a visitor on the operators' page: leads to their records, and explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ingestd.api import times
from ingestd.api.events import Record
from ingestd.api.journeys import (
    JourneyExplanation,
    JourneyFact,
    JourneyLead,
    JourneyMoment,
    JourneyPart,
    JourneyQuery,
    JourneyRecords,
)
from ingestd.api.panels import Cell, Column, Table
from ingestd.api.store import State, Store, state_key
from ingestd.support.unusable_ids import UnusableIds

from .amounts import worth
from .campaigns import Campaign
from .consumer import Rules
from .explanation import EXCLUDED, KINDS, Explanation, age_text, explain_order, ignored, money, waiting
from .journeys import LINK, TOUCH_SETS, VISITORS, linked_user, read_whole
from .marks import DecidedOrder, Marks, Refund
from .models import MODELS, weights
from .packing import read_touches
from .reading import Erasure, Seen, read
from .record_size import recorded_id
from .rollups import read_tenants
from .touches import Touch, repeats
from .untrusted import Untrusted, find_untrusted
from .waiting import find_waiting

__all__ = ["explain", "find"]

_MAX_VISITORS = 20  # of a user: the ones linked last
_MAX_ROWS = 50  # touchpoints in a table
_COLUMNS = [
    Column("Touchpoint"),
    Column("Channel"),
    Column("Before the order"),
    Column("Device"),
    Column("Credited"),
    *(Column(f"{model.replace('_', ' ').capitalize()}, %", digits=1, bar=True, whole=100) for model in MODELS),
]


async def find(query: JourneyQuery, store: Store) -> Sequence[JourneyLead]:
    """The position of an order, or the visitors of a user. A visitor needs no lead."""
    state = store.begin(times.now())
    tenants = await _tenants(query, state)
    if query.order is not None:
        marks = await Marks(state, 0).of_order_id(query.order, tenants)
        return [JourneyLead(tenant, position=mark.first, derived=mark.derived) for tenant, mark in marks.items()]
    if query.user is None:
        return []
    await state.load(sets=[state_key(VISITORS, tenant, query.user) for tenant in tenants])
    leads = []
    for tenant in tenants:
        linked = [visitor for visitor, _ in await state.window(state_key(VISITORS, tenant, query.user))]
        if linked:
            leads.append(JourneyLead(tenant, linked[-_MAX_VISITORS:]))
    return leads


async def _tenants(query: JourneyQuery, state: State) -> Sequence[str]:
    """The tenant of the query, or the tenants with an order in the last 30 days. A scan for all would take too long."""
    return [query.tenant] if query.tenant is not None else await read_tenants(state)


class _Known(NamedTuple):
    """What the state knows about a journey."""

    touches: Sequence[tuple[str, str, Touch, str | None]]
    """The tenant, the visitor, the touchpoint, and the reason why it does not count."""
    users: Mapping[str, str]
    """The users that visitors are linked to, by tenant. Only for a visitor's journey."""
    marks: Mapping[str, DecidedOrder]
    """The marks of the order that was asked for, by tenant."""
    waiting: Sequence[tuple[str, Refund]]
    untrusted: Sequence[Untrusted]


async def explain(found: JourneyRecords, store: Store, rules: Rules, unusable_ids: UnusableIds) -> JourneyPart:
    state = store.begin(times.now())
    tenants = await _tenants(found.query, state)
    known = await _known(found, tenants, state)
    # A thousand records take some milliseconds.
    orders = await asyncio.to_thread(_orders, found)
    marks = Marks(state, 0)
    of_orders = {
        body["id"]: await marks.find(body["tenant"], body["orderId"], body["orderEventId"])
        for body in orders.attributions
    }
    seen = partial(read, arrivals=rules.arrivals, unusable_ids=unusable_ids)
    return await asyncio.to_thread(_part, found, known, orders, marks=of_orders, seen=seen, rules=rules)


async def _known(found: JourneyRecords, tenants: Sequence[str], state: State) -> _Known:
    query, people = found.query, {lead.tenant: lead.visitors for lead in found.people}
    users = {}
    if query.visitor is not None:
        people = {tenant: [query.visitor] for tenant in tenants}
        await state.load(keys=[state_key(LINK, tenant, query.visitor) for tenant in tenants])
        linked = {tenant: await state.get(state_key(LINK, tenant, query.visitor)) for tenant in tenants}
        users = {tenant: linked_user(text) for tenant, text in linked.items() if text is not None}
    marks: Mapping[str, DecidedOrder] = {}
    waiting, untrusted = [], []
    if query.order is not None:
        marks = await Marks(state, 0).of_order_id(query.order, tenants)
        for tenant in tenants:
            waiting += [(tenant, refund) for refund in await find_waiting(state, tenant, query.order)]
            untrusted += await find_untrusted(state, tenant, query.order)
    return _Known(await _touches(people, state), users, marks, waiting, untrusted)


async def _touches(people: Mapping[str, Sequence[str]], state: State) -> Sequence[tuple[str, str, Touch, str | None]]:
    touches: list[tuple[str, str, Touch, str | None]] = []
    visitors = [(tenant, visitor) for tenant, some in people.items() for visitor in some[:_MAX_VISITORS]]
    for tenant, visitor in visitors:
        touches_key, referrers_key, without_key = keys = [state_key(kind, tenant, visitor) for kind in TOUCH_SETS]
        await state.load(sets=keys)
        counted = await read_touches(state, touches_key)
        counted += [touch for _, touch in await read_whole(state, referrers_key)]
        touches += [(tenant, visitor, touch, None) for touch in sorted(counted, key=lambda touch: touch.order)]
        touches += [(tenant, visitor, touch, reason) for reason, touch in await read_whole(state, without_key)]
        state.release(sets=keys)
    return touches


class _Orders(NamedTuple):
    """The attributions to explain: of the order that was asked for, or of all orders of the person."""

    attributions: Sequence[Mapping[str, Any]]
    reversals: Mapping[str, Sequence[Mapping[str, Any]]]
    """By the id of the attribution."""


def _orders(found: JourneyRecords) -> _Orders:
    order, attributions = found.query.order, []
    reversals: dict[str, list[Mapping[str, Any]]] = {}
    for record in found.records:
        if record.type == "attribution":
            body = record.decode()
            if order is None or recorded_id(order) == body["orderId"] or order == body["orderEventId"]:
                attributions.append(body)
        elif record.type == "attribution_reversal":
            body = record.decode()
            reversals.setdefault(body["attributionId"], []).append(body)
    return _Orders(attributions, reversals)


def _part(
    found: JourneyRecords,
    known: _Known,
    orders: _Orders,
    *,
    marks: Mapping[str, DecidedOrder | None],
    seen: Callable[[Record], Seen | Erasure | None],
    rules: Rules,
) -> JourneyPart:
    explanations = [
        _shown(
            explain_order(body, reversals, rules.channels),
            mark if mark is not None and mark.attribution_id == body["id"] else None,
            len(reversals),
            known.untrusted,
        )
        for body in orders.attributions
        for reversals, mark in [(orders.reversals.get(body["id"], []), marks[body["id"]])]
    ]
    explained = {(body["tenant"], body["id"]) for body in orders.attributions}
    for tenant, mark in known.marks.items():
        if (tenant, mark.attribution_id) not in explained:
            explanations.append(_remembered(found, tenant, mark))
    moments = [*_moments(map(seen, found.records), rules.limits.horizon)]
    moments += _remembered_touches(found, known, {each.record_id for each in moments})
    return JourneyPart(moments, explanations, [*_notes(found.query, known, explanations)])


def _notes(query: JourneyQuery, known: _Known, explanations: Collection[JourneyExplanation]) -> Iterator[str]:
    if query.order is not None and not explanations:
        yield "This order is not attributed: it has not been sent, or attribution has not read it yet."
        if query.tenant is None:
            yield "Without a tenant, this is only known of tenants with an order in the last 30 days."
        yield from (_sentence(ignored(each)) for each in known.untrusted)
    for tenant, refund in known.waiting:
        if not refund.is_applied:
            yield _sentence(waiting(tenant, refund))
    for tenant in known.users:
        yield f"Attribution has linked this visitor of {tenant} to a user."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _shown(
    order: Explanation, mark: DecidedOrder | None, reversals: int, untrusted: Sequence[Untrusted]
) -> JourneyExplanation:
    """`mark` is that of this attribution, of which `reversals` were found."""
    rows = [
        [
            "not in the record" if each.texts is None else _title(*map(each.texts.get, ("source", "medium", "name"))),
            each.channel,
            each.age,
            each.device,
            "credited" if each.is_credited else "",
            *map(_percent, each.weights.values()),
        ]
        for each in order.touchpoints
    ]
    notes = [*map(_sentence, order.notes)]
    if mark is not None and mark.reversals > reversals:
        notes.append("More reversals of this order exist. A search for the order finds them, if the journal has them.")
    notes += [_sentence(ignored(each)) for each in untrusted]
    return JourneyExplanation(
        f"Order of {order.tenant}: {order.value}",
        [*order.facts, *_reversed(mark)],
        _table(f"Touchpoints in the {order.window} before it, oldest first", rows, notes),
        notes,
    )


def _reversed(mark: DecidedOrder | None) -> Iterator[JourneyFact]:
    if mark is not None and mark.reversals:
        times_ = "1 reversal" if mark.reversals == 1 else f"{mark.reversals} reversals"
        yield JourneyFact("Reversed", f"{money(mark.reversed, mark.currency)} in {times_}")


def _title(source: str | None, medium: str | None, name: str | None) -> str:
    fields = source, medium, name
    return Campaign("campaign", fields).label if any(fields) else "a dispatch"


def _percent(weight: float) -> float:
    return round(100 * weight, 1)


def _table(title: str, rows: Sequence[Sequence[Cell]], notes: list[str]) -> Sequence[Table]:
    """A table of the first row and the last ones. `notes` gets the number of rows between them."""
    left_out = max(0, len(rows) - _MAX_ROWS)
    if left_out:
        notes.append(f"{left_out} touchpoints between the first and the others are not in the table.")
        rows = [rows[0], *rows[1 + left_out :]]
    return [Table(title, _COLUMNS, rows)] if rows else []


def _remembered(found: JourneyRecords, tenant: str, mark: DecidedOrder) -> JourneyExplanation:
    """What the mark knows of an order without its record: the value, and the touchpoints without their campaigns."""
    ids, ages = [each for each, _ in mark.touches], [age for _, age in mark.touches]
    shares = [weights(model, ages, mark.half_life) if ages else [] for model in MODELS]
    rows: list[Sequence[Cell]] = [
        [
            f"event {event_id}" if event_id else "one of the others",
            "",
            age_text(age),
            "",
            "",
            *(_percent(each[index]) for each in shares),
        ]
        for index, (event_id, age) in enumerate(zip(ids, ages, strict=True))
    ]
    is_removed = mark.position < found.oldest
    notes = [
        "The journal has removed the record of this attribution. The daemon still remembers this."
        if is_removed
        else "The record of this attribution is not among the records that were read. The daemon remembers this."
    ]
    if not rows:
        notes.append("There was no touchpoint, so the order is direct.")
    facts = [
        JourneyFact("Order", found.query.order, names="order"),
        JourneyFact("Received", times.format_time(mark.at)),
        JourneyFact("Attribution", mark.attribution_id),
        JourneyFact("Credited by", mark.model),
        *_reversed(mark),
    ]
    amount = money(worth(mark.revenue, mark.total), mark.currency)
    tables = _table("Touchpoints, oldest first", rows, notes)
    return JourneyExplanation(f"Order of {tenant}: {amount}", facts, tables, notes)


def _moments(read_records: Iterable[Seen | Erasure | None], horizon: int) -> Iterator[JourneyMoment]:
    found = [each for each in read_records if isinstance(each, Seen)]
    repeated = repeats(
        (f"{each.tenant} {each.anonymous_id}", each.received_at - horizon, each.touch)
        for each in found
        if each.touch is not None and each.excluded is None
    )
    for seen in found:
        yield from _moments_of(seen, repeated)


def _moments_of(seen: Seen, repeated: Collection[str]) -> Iterator[JourneyMoment]:
    tenant, visitor = seen.tenant, seen.anonymous_id
    if seen.touch is not None and seen.touch.event_id not in repeated:
        yield _touch_moment(tenant, visitor, seen.touch, seen.excluded)
    if seen.order is not None:
        order = seen.order
        title = money(worth(order.revenue, order.total), order.currency)
        yield JourneyMoment(order.at, "order", title, tenant, visitor, order.event_id, detail=order.order_id or "")
    if seen.refund is not None:
        refund = seen.refund
        title = "the rest of the order" if refund.amount is None else money(refund.amount, refund.currency)
        kind = KINDS[refund.reason]
        yield JourneyMoment(
            refund.received_at, kind, title, tenant, visitor, refund.event_id, detail=refund.order_id or ""
        )


def _touch_moment(
    tenant: str, visitor: str, touch: Touch, excluded: str | None, *, is_removed: bool = False
) -> JourneyMoment:
    title = _title(touch.source, touch.medium, touch.name)
    details = [
        touch.term,
        touch.content,
        touch.dispatch_id and f"dispatch {touch.dispatch_id}",
        touch.click and f"click {touch.click.type}",
        touch.kind == "referrer" and touch.kind,
    ]
    return JourneyMoment(
        touch.at,
        "touchpoint",
        title if excluded is None else f"{title} (not counted: {EXCLUDED[excluded]})",
        tenant,
        visitor,
        touch.event_id,
        detail=" / ".join(each for each in details if each),
        is_removed=is_removed,
    )


def _remembered_touches(found: JourneyRecords, known: _Known, seen: Collection[str | None]) -> Iterator[JourneyMoment]:
    """Touchpoints in the state whose records the journal has removed, or the search has not reached."""
    for tenant, visitor, touch, excluded in known.touches:
        if touch.event_id not in seen:
            yield _touch_moment(tenant, visitor, touch, excluded, is_removed=touch.position < found.oldest)
