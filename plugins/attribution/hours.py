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
_LARGEST = 1e15  # an amount that nobody has would take all digits from the others

OTHERS = "(others)"


class Decided(NamedTuple):
    """An order and what it is credited to."""

    order: Order
    candidates: Candidates


class Sums(msgspec.Struct, array_like=True):
    """A campaign of a tenant in a currency: its shares of orders and revenue, in the order of `MODELS`."""

    tenant: str
    campaign: str
    currency: str | None
    orders: list[float]
    revenue: list[float]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Sums]).decode

_Name = tuple[str, str, str | None]


async def add_all(state: State, decided: Iterable[Decided], half_life: int) -> None:
    """Count the orders of a step, those of the last day."""
    hours: dict[int, list[Decided]] = {}
    for each in decided:
        hours.setdefault(each.order.received_at // HOUR, []).append(each)
    oldest = state.now // HOUR - _HOURS
    for hour, some in hours.items():
        if hour <= oldest:
            continue
        rows = {_name(row): row for row in await _read(state, hour)}
        for each in some:
            _add(rows, each, half_life)
        life = max(0, (hour + _HOURS + 1) * HOUR - state.now)
        await state.put(_key(hour), _encode([*rows.values()]).decode(), life)


def _add(rows: dict[_Name, Sums], decided: Decided, half_life: int) -> None:
    order, value = decided.order, worth(decided.order.revenue, decided.order.total)
    amount = float(value) if value is not None and abs(value) < _LARGEST else 0.0
    for campaign, shares in _shares(decided, half_life).items():
        name = order.tenant, campaign, currency_code(order.currency)
        if name not in rows and len(rows) >= _MOST:
            name = "", OTHERS, name[2]
            if name not in rows and len(rows) >= _MOST + _MOST_OTHERS:
                name, amount = ("", OTHERS, None), 0.0  # nobody has so many currencies
        none = [0.0] * len(MODELS)
        row = rows.setdefault(name, Sums(*name, none, none.copy()))
        for place, share in enumerate(shares):
            row.orders[place] += share
            row.revenue[place] += share * amount


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


def _key(hour: int) -> str:
    return state_key(_KIND, "", str(hour))


def _name(row: Sums) -> _Name:
    return row.tenant, row.campaign, row.currency
