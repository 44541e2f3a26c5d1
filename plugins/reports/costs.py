"""Costs of campaigns by day, as a shop has imported them. The state has an entry for each day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, WriteConflict
from ingestd.api.store import State, Store, StoredValue

from .periods import Periods

__all__ = ["Changes", "Cost", "change", "days_of", "read_costs", "scan_costs"]

_KIND = "attribution-cost"
_MAX_ROWS = 5_000  # of a day
_AT_ONCE = 30  # days in a transaction
_DAY = 86_400_000


class Cost(msgspec.Struct, frozen=True, array_like=True):
    """What a campaign cost on a day, in one currency."""

    source: str
    medium: str | None
    campaign: str | None
    currency: str
    cost: Decimal
    clicks: int | None = None
    impressions: int | None = None

    @property
    def key(self) -> tuple[str | None, ...]:
        """A cost replaces another one of the same day with this key. Reports add up campaigns without case, too."""
        names = (self.source, self.medium, self.campaign)
        return *(name and name.lower() for name in names), self.currency


class _CostsOfDay(msgspec.Struct):
    tenant: str
    day: str
    costs: list[Cost]


_STORED = StoredValue(_KIND, _CostsOfDay)


class Changes(msgspec.Struct):
    """The numbers of costs that were new, replaced by others, removed, or stored before."""

    new: int = 0
    replaced: int = 0
    removed: int = 0
    same: int = 0


async def read_costs(store: Store, tenant: str, periods: Periods, life: int) -> AsyncIterator[tuple[int, Cost]]:
    """The costs of the days that begin in the periods, with their numbers. `life` is as in `change`.

    Raises `Unavailable`.
    """
    today = datetime.fromtimestamp(times.now() / 1000, UTC).date()
    first, last = periods.days
    first, last = max(first, today - timedelta(milliseconds=life + 3 * _DAY)), min(last, today + timedelta(days=1))
    for start in range(0, (last - first).days + 1, _AT_ONCE):
        begin = first + timedelta(days=start)
        days = [begin + timedelta(days=index) for index in range(min(_AT_ONCE, (last - begin).days + 1))]
        state = store.begin(times.now())
        await state.load(keys=[_STORED.key(str(day), tenant) for day in days])
        for day in days:
            found = await _STORED.load(state, str(day), tenant)
            if found is not None and (number := periods.number_of_day(day)) is not None:
                for cost in found.costs:
                    yield number, cost


async def scan_costs(store: Store) -> AsyncIterator[tuple[str, date, Sequence[Cost]]]:
    """All costs, with tenant and day, in any order. Raises `Unavailable`."""
    async for _, text in store.scan(_KIND):
        found = _STORED.decode(text)
        yield found.tenant, date.fromisoformat(found.day), found.costs


async def days_of(store: Store) -> Mapping[str, Collection[str]]:
    """The days that have costs, by tenant: the keys of the entries are made of them."""
    found: dict[str, set[str]] = {}
    async for tenant, day, _ in scan_costs(store):
        found.setdefault(tenant, set()).add(str(day))
    return found


async def change(
    store: Store, tenant: str, costs: Mapping[date, Sequence[Cost]], *, life: int, replace: bool = False, dry_run: bool
) -> Changes:
    """Store costs of days. Each replaces one of the same day and key, and with `replace` all others of its day.

    A day's costs stay for `life` milliseconds after it. Repeated calls do no harm, so an interrupted import is run
    again. Raises `CommandError` for a day with too many costs, before any day is changed, and `Unavailable`.
    """
    if not dry_run:
        await change(store, tenant, costs, life=life, replace=replace, dry_run=True)
    changes, days = Changes(), sorted(costs)
    for start in range(0, len(days), _AT_ONCE):
        some = days[start : start + _AT_ONCE]
        while True:
            state = store.begin(times.now())
            part = Changes()
            await state.load(keys=[_STORED.key(str(day), tenant) for day in some])
            for day in some:
                await _change_day(state, tenant, day, costs[day], part, life=life, replace=replace)
            if dry_run:
                store.discard(state)
                break
            try:
                await store.commit(state)
            except WriteConflict:
                continue
            break
        for name in part.__struct_fields__:
            setattr(changes, name, getattr(changes, name) + getattr(part, name))
    return changes


async def _change_day(
    state: State, tenant: str, day: date, given: Iterable[Cost], changes: Changes, *, life: int, replace: bool
) -> None:
    stored = await _STORED.load(state, str(day), tenant)
    before = {cost.key: cost for cost in (stored.costs if stored is not None else ())}
    new = {cost.key: cost for cost in given}
    after = new if replace else {**before, **new}
    if len(after) > _MAX_ROWS:
        raise CommandError(f"{day} would have {len(after)} costs; a day has at most {_MAX_ROWS}")
    changes.new += len(after.keys() - before.keys())
    changes.removed += len(before.keys() - after.keys())
    same = sum(before.get(key) == cost for key, cost in new.items())
    changes.same += same
    changes.replaced += len(new.keys() & before.keys()) - same
    ends = round(datetime.combine(day, datetime.min.time(), UTC).timestamp() * 1000) + life + 2 * _DAY
    value = _CostsOfDay(tenant, str(day), [*after.values()]) if after else None
    await _STORED.save(state, value, str(day), tenant, ttl=max(1, ends - state.now))
