"""Touchpoints of a visitor over months: parts shared by several live as long as any of them."""

from __future__ import annotations

import random
from binascii import a2b_base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from ingestd.api.store import Store, state_key
from ingestd.plugins.attribution.packing import add_touch, read_touches
from ingestd.plugins.attribution.touches import NamedBy, Touch, repeats
from ingestd.plugins.sources import ClickId
from ingestd.plugins.stores.sqlite.backend import SqliteBackend
from ingestd.plugins.stores.sqlite.sweep import GRACE, PAUSE, Sweeper

DAY = 86_400_000
START = 20_000 * DAY
WEEK = 7 * DAY
KEY = state_key("touches", "shop", "visitor")


def touch(chance: random.Random, position: int, at: int) -> Touch:
    """A touch with one of few campaigns and one of few sessions."""
    session = str(UUID(int=chance.randrange(5)))
    source, name = chance.choice(["news", "search"]), chance.choice(["autumn", "winter", None])
    click = chance.choice([None, None, ClickId("gclid", str(position % 4))])
    named_by: NamedBy | None = None if click is None else chance.choice([None, "click"])
    more = None, None, None, named_by, click
    return Touch(position, at, str(UUID(int=position)), session, source, None, name, *more)


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[SqliteBackend]:
    """A back end with a very small cache."""
    backend = SqliteBackend(folder / "ingestd.db", cache=10, busy_timeout=1.0)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def add(store: Store, new: Touch, now: int) -> None:
    state = store.begin(now)
    await add_touch(state, KEY, new, keep=50, since=now - 2 * WEEK, ttl=6 * WEEK)
    await store.commit(state)


async def sweep(backend: SqliteBackend) -> None:
    """Do a complete sweep, which the daemon does in its idle moments."""
    assert backend.database.commits is not None
    sweeper = Sweeper(backend.database, backend.database.commits)
    for _ in range(10):
        await sweeper.step()


@pytest.mark.parametrize("seed", range(3))
async def test_for_half_a_year_all_touches_within_their_time_are_complete(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with sqlite(tmp_path) as backend:
        touches: list[Touch] = []
        now = START
        for position in range(1, 160):
            now += chance.choice([1000, DAY // 3, DAY, 3 * DAY])
            touches.append(touch(chance, position, now))
            await add(backend.store, touches[-1], now)
            await sweep(backend)
            found = await read_touches(backend.store.begin(now), KEY, now - 2 * WEEK)
            gone = repeats(("visitor", each.at - 2 * WEEK, each) for each in touches)
            assert found == [each for each in touches if each.at >= now - 2 * WEEK and each.event_id not in gone]
        assert now - START > 150 * DAY


async def test_parts_are_bounded_wherever_touches_stand_in_the_journal(tmp_path: Path) -> None:
    """A stranger may let every second record be of another visitor. Numbers of parts are used up in the end."""
    async with sqlite(tmp_path) as backend:
        state = backend.store.begin(START)
        await state.push(KEY, "zzzz:!other", (1 << 52) + (1 << 24) - 1, keep=1 << 52)
        await backend.store.commit(state)
        for position in range(1, 1000, 2):
            text, event_id = str(position), str(UUID(int=random.Random(position).getrandbits(128)))
            new = Touch(
                position,
                START + position,
                event_id,
                text,
                text,
                None,
                None,
                None,
                None,
                None,
                click=ClickId("gclid", text),
            )
            await add(backend.store, new, START + position)
        state = backend.store.begin(START)
        assert [each.source for each in await read_touches(state, KEY)][-49:] == [*map(str, range(903, 1000, 2))]
        assert len(await state.window(KEY)) < 400


async def test_touches_without_their_parts_are_not_found(tmp_path: Path) -> None:
    """A sweep may remove shared parts before the touches that have them. Readers in between do not wait."""
    async with sqlite(tmp_path) as backend:
        for position in range(1, 4):
            await add(backend.store, touch(random.Random(1), position, START + position), START + position)
        state = backend.store.begin(START)
        members = [member for member, _ in await state.window(KEY, 1 << 52)]
        await state.pull(KEY, members)
        await backend.store.commit(state)
        assert await read_touches(backend.store.begin(START + 10), KEY) == []


async def test_after_the_sweep_of_expired_touches_nothing_is_left(tmp_path: Path) -> None:
    async with sqlite(tmp_path) as backend:
        for position in range(1, 30):
            await add(backend.store, touch(random.Random(1), position, START + position * DAY), START + position * DAY)
        backend.store.begin(START + 30 * DAY + 7 * WEEK + GRACE + PAUSE)
        await sweep(backend)
        for key in range(20):  # other keys evict it from the cache
            await backend.store.begin(START).get(f"other:{key}")
        assert await backend.store.begin(START).window(KEY) == []


async def test_an_earlier_version_reads_the_event_id_before_a_click_id(tmp_path: Path) -> None:
    """It reads all of the member that follows the session and the campaign as base 64."""
    async with sqlite(tmp_path) as backend:
        campaign = Touch(1, START, str(UUID(int=7)), None, "a", None, None, None, None, None)
        await add(backend.store, replace(campaign, click=ClickId("gclid", "x")), START)
        (member, _), *_ = await backend.store.begin(START).window(KEY)
    assert UUID(bytes=a2b_base64(member.split(".", 2)[2] + "==")) == UUID(int=7)


async def test_a_touch_has_no_click_id_after_an_earlier_version_has_used_its_number_again(tmp_path: Path) -> None:
    """It does not know that touches use click ids. So it removes them, and numbers its next part like the last one."""
    async with sqlite(tmp_path) as backend:
        first = Touch(
            1, START, str(UUID(int=7)), None, "google", "cpc", None, None, None, None, "click", ClickId("gclid", "x")
        )
        await add(backend.store, first, START)
        state = backend.store.begin(START)
        *_, (click, at) = await state.window(KEY, 1 << 52)
        await state.pull(KEY, [click])
        await state.push(KEY, f'{click.partition(":")[0]}:["news"]', at, keep=1 << 52)
        await backend.store.commit(state)
        assert await read_touches(backend.store.begin(START), KEY) == [replace(first, named_by=None, click=None)]
        await add(backend.store, replace(first, position=2), START)
