"""What campaigns brought in the last day, an hour at a time, for the operators' page.

An hour is one entry of the state, written in the step that decides its orders: so each order counts once, a restart
forgets none, and any daemon can show it. The exact sums, with reversals, are `ingestd attribution report`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ingestd.store import State, state_key

from .amounts import currency_code, worth
from .journeys import Candidates
from .marks import Order
from .models import MODELS, weights
from .report import DIRECT, NOT_SET

__all__ = ["OTHERS", "Decided", "Sums", "add_all", "read_day", "sum_up"]

HOUR = 3_600_000
_HOURS = 24
_KIND = "attribution-hour"
_MOST = 60  # rows of an hour: callers choose the names of campaigns
_MOST_OTHERS = 20
_LONGEST = 80  # characters of such a name

_NO_SHARE = 1e-9  # of an order: what is left of floats that sum to nothing

OTHERS = "(others)"


class Decided(NamedTuple):
    """An order and what it is credited to."""

    order: Order
    candidates: Candidates
    supersedes: bool = False
    """Whether it supersedes the order of the same id that a public key sent."""


class Sums(msgspec.Struct, array_like=True):
    """A campaign of a tenant in a currency: its shares of orders and revenue, in the order of `MODELS`."""

    tenant: str
    campaign: str
    currency: str | None
    orders: list[float]
    revenue: list[float]


class _Counted(msgspec.Struct, array_like=True):
    """What an order of a public key added to which hour: a signed order may supersede it."""

    hour: int
    added: list[Sums]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Sums]).decode
_encode_counted = msgspec.json.Encoder().encode
_decode_counted = msgspec.json.Decoder(_Counted).decode

_Name = tuple[str, str, str | None]


async def add_all(state: State, decided: Sequence[Decided], half_life: int) -> None:
    """Count the orders of a step, those of the last day; and no more those that they supersede."""
    hours: dict[int, list[Decided]] = {}
    for each in decided:
        hours.setdefault(each.order.received_at // HOUR, []).append(each)
    oldest = state.now // HOUR - _HOURS
    for hour, some in hours.items():
        if hour <= oldest:
            continue
        rows = {_name(row): row for row in await _read(state, hour)}
        life = _life(hour, state.now)
        for each in some:
            added = _add(rows, each, half_life)
            if not each.order.signed and each.order.order_id is not None:
                entry = _Counted(hour, added)
                await state.put(_counted_key(each.order), _encode_counted(entry).decode(), life)
        await state.put(_key(hour), _encode([*rows.values()]).decode(), life)
    superseded = [_counted_key(each.order) for each in decided if each.supersedes]
    if superseded:
        await _take_off(state, superseded)


async def _take_off(state: State, superseded: Sequence[str]) -> None:
    """Count these orders of public keys no more. Those of more than a day ago are not known."""
    await state.load(keys=superseded)
    hours: dict[int, list[Sums]] = {}
    for key in superseded:
        text = await state.get(key)
        if text is not None:
            counted = _decode_counted(text)
            hours.setdefault(counted.hour, []).extend(counted.added)
            await state.delete(key)
    for hour, parts in hours.items():
        rows = {_name(row): row for row in await _read(state, hour)}
        for part in parts:
            row = rows.get(_name(part))
            if row is not None:
                row.orders = [a - b for a, b in zip(row.orders, part.orders, strict=True)]
                row.revenue = [a - b for a, b in zip(row.revenue, part.revenue, strict=True)]
        left = [row for row in rows.values() if max(row.orders) > _NO_SHARE]
        await state.put(_key(hour), _encode(left).decode(), _life(hour, state.now))


def _life(hour: int, now: int) -> int:
    return max(0, (hour + _HOURS + 1) * HOUR - now)


def _add(rows: dict[_Name, Sums], decided: Decided, half_life: int) -> list[Sums]:
    """Add an order to its hour; returns what was added to each row."""
    added = []
    order, value = decided.order, worth(decided.order.revenue, decided.order.total)
    amount = float(value) if value is not None else 0.0
    for campaign, shares in _shares(decided, half_life).items():
        name = order.tenant, campaign, currency_code(order.currency)
        if name not in rows and len(rows) >= _MOST:
            name = "", OTHERS, name[2]
            if name not in rows and len(rows) >= _MOST + _MOST_OTHERS:
                name, amount = ("", OTHERS, None), 0.0  # nobody has so many currencies
        none = [0.0] * len(MODELS)
        row = rows.setdefault(name, Sums(*name, none, none.copy()))
        part = Sums(*name, shares, [share * amount for share in shares])
        row.orders = [a + b for a, b in zip(row.orders, part.orders, strict=True)]
        row.revenue = [a + b for a, b in zip(row.revenue, part.revenue, strict=True)]
        added.append(part)
    return added


def _shares(decided: Decided, half_life: int) -> Mapping[str, list[float]]:
    """By campaign, of each model."""
    touches = [touch for touch, _ in decided.candidates.touches]
    if not touches:
        return {DIRECT: [1.0] * len(MODELS)}
    ages = [decided.order.at - touch.at for touch in touches]
    found: dict[str, list[float]] = {}
    for place, model in enumerate(MODELS):
        for touch, weight in zip(touches, weights(model, ages, half_life), strict=True):
            parts = [part for part in (touch.source, touch.medium, touch.name) if part]
            campaign = (" / ".join(parts) or NOT_SET)[:_LONGEST]
            found.setdefault(campaign, [0.0] * len(MODELS))[place] += weight
    return found


async def read_day(state: State) -> Sequence[str]:
    """The hours of the last day that have any, as they are stored."""
    hour = state.now // HOUR
    keys = [_key(each) for each in range(hour - _HOURS + 1, hour + 1)]
    await state.load(keys=keys)
    return [text for key in keys if (text := await state.get(key)) is not None]


def sum_up(hours: Iterable[str]) -> list[Sums]:
    rows: dict[_Name, Sums] = {}
    for text in hours:
        for row in _decode(text):
            known = rows.setdefault(_name(row), row)
            if known is not row:
                known.orders = [a + b for a, b in zip(known.orders, row.orders, strict=True)]
                known.revenue = [a + b for a, b in zip(known.revenue, row.revenue, strict=True)]
    return [*rows.values()]


async def _read(state: State, hour: int) -> list[Sums]:
    text = await state.get(_key(hour))
    return [] if text is None else _decode(text)


def _counted_key(order: Order) -> str:
    return state_key("attribution-counted", order.tenant, order.order_id or order.event_id)


def _key(hour: int) -> str:
    return state_key(_KIND, "", str(hour))


def _name(row: Sums) -> _Name:
    return row.tenant, row.campaign, row.currency
