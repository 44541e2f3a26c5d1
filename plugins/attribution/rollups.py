"""Rollups: sums of orders, revenue and reversals by campaign for an hour or a day, for the operators' page.

A rollup is an entry of the state. The step that decides or reverses an order also writes its rollups. So each order
counts once, a restart loses nothing, and every daemon can show it. A reversal counts in the rollups of its order, as in
the report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import add
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from ingestd.api.contents import Entry, kind_of
from ingestd.api.store import State, state_key

from .amounts import currency_code, worth
from .campaigns import DIRECT, DIRECT_DIGEST, OTHERS, OTHERS_DIGEST, Campaign, Fields, add_weights, campaign_digest, cut
from .marks import DecidedOrder
from .models import MODELS, Model, weights
from .record_size import MAX_ORDER
from .report import Row, ranked, total

__all__ = [
    "DAY",
    "HOUR",
    "PERIODS",
    "Change",
    "Period",
    "Sums",
    "add_all",
    "merge",
    "order_change",
    "read",
    "read_tenants",
    "reversal_change",
    "rollup_parts",
    "rows_of",
    "sum_up",
    "superseded_change",
    "within_room",
]

HOUR, DAY = 3_600_000, 86_400_000

_KEPT = {HOUR: 24, DAY: 30}
"""The number of rollups of each length that are kept, including the current one."""
_MAX_ROWS = 100  # in a rollup: callers choose the names of campaigns
_MAX_ROWS_OF_OTHERS = 20  # further rows, `OTHERS` in one currency each
_MAX_TENANTS = 1000
_ROLLUPS = 4  # that an order changes: an hour and a day, of its tenant and of all
_ROW = 350  # bytes of a row beside its names: three times five numbers of 20, and the digest
_DIGEST = 16  # bytes of a campaign in a mark
_DIGITS = 6  # decimals of a sum of floats that are kept: the others are rounding errors

_KIND, _KIND_OF_ALL = "attribution-rollup", "attribution-rollup-all"
_TENANTS = state_key("attribution-rollup-tenants", "", "")


class Period(NamedTuple):
    """The period of a table: the newest `number` rollups of `length` milliseconds."""

    title: str
    length: int
    number: int

    def since(self, now: int) -> int:
        return (now // self.length - self.number + 1) * self.length


PERIODS: Mapping[str, Period] = {
    "day": Period("24 hours", HOUR, 24),
    "week": Period("7 days", DAY, 7),
    "month": Period("30 days", DAY, 30),
}


_Name = str | tuple[str | None, ...]
"""A campaign in a rollup: its fields. A text is the label of another row, or of a campaign of an earlier version."""


class Change(NamedTuple):
    """The amounts that an order, or a reversal of it, adds to the rollups of that order."""

    tenant: str
    received_at: int
    """The time of the order's receipt, in milliseconds."""
    currency: str | None
    shares: Mapping[int, Sequence[float]]
    """The shares of each campaign, by its digest: one for each of `MODELS`."""
    orders: float
    revenue: float
    reversed: float
    names: Mapping[int, _Name] = MappingProxyType({})
    """The names of an order's campaigns. A reversal finds the rows of its order without names."""


class Sums(msgspec.Struct, array_like=True):
    """One campaign in one currency: orders, revenue and reversed revenue for each of `MODELS`."""

    digest: int
    campaign: _Name
    currency: str | None
    orders: list[float]
    revenue: list[float]
    reversed: list[float]


_Key = tuple[int, str | None]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Sums]).decode


def order_change(tenant: str, mark: DecidedOrder, campaigns: Iterable[Fields]) -> Change:
    """The change for a decided order. `campaigns` holds the campaigns of its touchpoints."""
    names: dict[int, _Name] = {campaign_digest(fields): cut(fields) for fields in campaigns}
    names |= {DIRECT_DIGEST: DIRECT.label, OTHERS_DIGEST: OTHERS.label}
    return _change(tenant, mark, 1, _revenue(mark), 0.0)._replace(names=names)


def within_room(mark: DecidedOrder, campaigns: Iterable[Fields], record: int) -> DecidedOrder:
    """The mark of an order whose rows in rollups fit into `MAX_ORDER` beside the mark and a record of so many bytes.

    Campaigns with small shares count among `OTHERS` if necessary. Nothing else may decide this: the order's reversal
    must find the same rows.
    """
    digests = mark.campaigns or []
    names = {campaign_digest(fields): len(_encode((cut(fields), currency_code(mark.currency)))) for fields in campaigns}
    room = MAX_ORDER - record - len(_encode(msgspec.structs.replace(mark, campaigns=[0] * len(digests))))
    kept = set()
    for digest in sorted(shares := _shares(mark), key=lambda digest: -sum(shares[digest])):
        room -= _ROLLUPS * (_ROW + names.get(digest, 0)) + _DIGEST * digests.count(digest)
        if room < 0:
            break
        kept.add(digest)
    return msgspec.structs.replace(mark, campaigns=[digest if digest in kept else 0 for digest in digests])


def reversal_change(tenant: str, before: DecidedOrder, after: DecidedOrder) -> Change | None:
    """The change for a reversal, from the marks of its order before and after it.

    None if an earlier version decided the order, because no rollup has that order.
    """
    if before.campaigns is None:
        return None
    return _change(tenant, before, 0, 0.0, _reversed(after) - _reversed(before))


def superseded_change(tenant: str, mark: DecidedOrder) -> Change | None:
    """The change that removes an order and its reversals. None in the same case as `reversal_change`."""
    return None if mark.campaigns is None else _change(tenant, mark, -1, -_revenue(mark), -_reversed(mark))


def _change(tenant: str, mark: DecidedOrder, orders: float, revenue: float, reversed_: float) -> Change:
    return Change(tenant, mark.at, currency_code(mark.currency), _shares(mark), orders, revenue, reversed_)


def _revenue(mark: DecidedOrder) -> float:
    return float(worth(mark.revenue, mark.total) or 0)


def _reversed(mark: DecidedOrder) -> float:
    """The reversed amount, with the sign of the order's revenue."""
    return float(mark.reversed) if _revenue(mark) >= 0 else -float(mark.reversed)


def _shares(mark: DecidedOrder) -> Mapping[int, Sequence[float]]:
    campaigns, ages = [digest or OTHERS_DIGEST for digest in mark.campaigns or []], [age for _, age in mark.touches]
    found: dict[int, list[float]] = {}
    for index, model in enumerate(MODELS):
        touches = zip(campaigns, weights(model, ages, mark.half_life), strict=True) if ages else ()
        for campaign, parts in add_weights(touches, DIRECT_DIGEST).items():
            found.setdefault(campaign, [0.0] * len(MODELS))[index] = sum(parts)
    return found


async def add_all(state: State, changes: Iterable[Change], give_way: Callable[[], Awaitable[None]]) -> None:
    """Add the changes of a step to the rollups that are still kept. Calls `give_way` after each change."""
    wanted: dict[tuple[str | None, int, int], list[Change]] = {}
    tenants = set()
    for change in changes:
        for length, number in _KEPT.items():
            index = change.received_at // length
            if index > state.now // length - number:
                tenants.add(change.tenant)
                for tenant in (change.tenant, None):
                    wanted.setdefault((tenant, length, index), []).append(change)
    if not wanted:
        return
    await state.load(keys=[_key(*each) for each in wanted], sets=[_TENANTS])
    names: dict[int, _Name] = {}
    """The names in the rollups of tenants: those of all together lack the rows of a tenant that was moved here."""
    for (tenant, length, index), some in wanted.items():
        key = _key(tenant, length, index)
        text = await state.get(key)
        rows = {_key_of(row): row for row in _decode(text)} if text is not None else {}
        if tenant is not None:
            names |= {row.digest: row.campaign for row in rows.values()}
        for change in some:
            _add(rows, change if tenant is not None else change._replace(names={**names, **change.names}))
            await give_way()
        await state.put(key, _encode([*rows.values()]).decode(), (index + _KEPT[length]) * length - state.now)
    await _remember_tenants(state, tenants)


def _add(rows: dict[_Key, Sums], change: Change) -> None:
    for digest, shares in change.shares.items():
        row, counts = _row(rows, digest, change)
        if row is None:
            continue
        for index, share in enumerate(shares):
            row.orders[index] += share * change.orders
            if counts:
                row.revenue[index] += share * change.revenue
                row.reversed[index] += share * change.reversed


def _row(rows: dict[_Key, Sums], digest: int, change: Change) -> tuple[Sums | None, bool]:
    """The row for the campaign in the change's currency, and whether amounts count there.

    Rows are never removed. So a reversal finds the row of its order.
    """
    name, currency, counts = change.names.get(digest), change.currency, True
    if (digest, currency) not in rows and len(rows) >= _MAX_ROWS:
        digest, name = OTHERS_DIGEST, OTHERS.label
        if (digest, currency) not in rows and len(rows) >= _MAX_ROWS + _MAX_ROWS_OF_OTHERS:
            currency, counts = None, False  # no shop has so many currencies
    row = rows.get((digest, currency))
    if row is None and name is not None:
        none = [0.0] * len(MODELS)
        row = rows[digest, currency] = Sums(digest, name, currency, none, none.copy(), none.copy())
    return row, counts


async def _remember_tenants(state: State, tenants: Iterable[str]) -> None:
    """Write each tenant once a day, so that the page can offer every tenant that has rollups."""
    today = state.now // DAY * DAY
    known = dict(await state.window(_TENANTS))
    life = (_KEPT[DAY] + 1) * DAY
    for tenant in tenants:
        if known.get(tenant, 0) < today:
            since = today - _KEPT[DAY] * DAY
            await state.push(_TENANTS, tenant, today, keep=_MAX_TENANTS, since=since, ttl=life)


async def read_tenants(state: State) -> Sequence[str]:
    """The tenants with orders in the last 30 days, sorted by name."""
    since = (state.now // DAY - _KEPT[DAY]) * DAY
    return sorted(tenant for tenant, _ in await state.window(_TENANTS, since))


async def read(state: State, period: Period, tenant: str | None) -> Sequence[str]:
    """The stored rollups of a period. If `tenant` is None, the rollups of all tenants together."""
    now = state.now // period.length
    keys = [_key(tenant, period.length, index) for index in range(now - period.number + 1, now + 1)]
    await state.load(keys=keys)
    return [text for key in keys if (text := await state.get(key)) is not None]


def sum_up(rollups: Iterable[str]) -> Sequence[Sums]:
    found: dict[_Key, Sums] = {}
    for text in rollups:
        for row in _decode(text):
            known = found.get(_key_of(row))
            if known is None:
                columns = [column.copy() for column in _columns(row)]
                found[_key_of(row)] = Sums(row.digest, row.campaign, row.currency, *columns)
            else:
                for sums, more in zip(_columns(known), _columns(row), strict=True):
                    sums[:] = map(add, sums, more)
    return [*found.values()]


def merge(entries: Sequence[Entry]) -> Entry | None:
    """One entry with the sums or tenants of all partitions; None for entries of another kind."""
    first = entries[0]
    expires = max([entry.expires or 0 for entry in entries]) or None
    if kind_of(first.key) == _KIND_OF_ALL:
        return Entry(first.key, _encode(sum_up(entry.value or "[]" for entry in entries)).decode(), expires=expires)
    if first.key == _TENANTS:
        members: dict[str, int] = {}
        for entry in entries:
            for tenant, at in (entry.members or {}).items():
                members[tenant] = max(at, members.get(tenant, 0))
        newest = sorted(members.items(), key=lambda member: (member[1], member[0]))[-_MAX_TENANTS:]
        return Entry(first.key, members=dict(newest), expires=expires)
    return None


def rows_of(sums: Iterable[Sums], model: Model) -> list[Row]:
    """The rows of the report by this model."""
    index = MODELS.index(model)
    rows: dict[tuple[str, str | None], Row] = {}
    for each in sums:
        campaign = _campaign(each.campaign)
        orders, revenue, reversed_ = (_decimal(column[index]) for column in _columns(each))
        if orders:  # 0 if the campaign has no share by this model, or all its orders were superseded
            key = campaign.label, each.currency
            row = Row(campaign, each.currency, orders, revenue, reversed_, revenue - reversed_)
            # A campaign that an earlier version counted under its text has no second row.
            rows[key] = total([row, rows[key]])._replace(campaign=campaign) if key in rows else row
    return ranked(rows.values())


def _campaign(name: _Name) -> Campaign:
    if isinstance(name, str):
        return {each.label: each for each in (DIRECT, OTHERS)}.get(name) or Campaign("campaign", (name,))
    return Campaign("campaign", tuple(name))


def _decimal(value: float) -> Decimal:
    """The value without the rounding errors of floats."""
    return Decimal(str(round(value, _DIGITS)))


def _columns(row: Sums) -> tuple[list[float], list[float], list[float]]:
    return row.orders, row.revenue, row.reversed


def _key_of(row: Sums) -> _Key:
    return row.digest, row.currency


def rollup_parts(now: int) -> Collection[str]:
    """The texts in the keys of all rollups that may be stored, with a margin for clocks."""
    life = 2 * _KEPT[DAY] * DAY
    indices = {length: range((now - life) // length, now // length + kept) for length, kept in _KEPT.items()}
    return [_part(length, index) for length, some in indices.items() for index in some]


def _part(length: int, index: int) -> str:
    return f"{'hour' if length == HOUR else 'day'}:{index}"


def _key(tenant: str | None, length: int, index: int) -> str:
    part = _part(length, index)
    return state_key(_KIND_OF_ALL, "", part) if tenant is None else state_key(_KIND, tenant, part)
