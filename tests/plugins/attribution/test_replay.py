"""Attribution is a function of the journal: a replay, a delay or a crash gives the same bytes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from ingestd.api.events import Record
from ingestd.consumers.group import ConsumerStatus
from tests.support.attribution import START, Attribution, Shop, agrees, attributing
from tests.support.attribution_reference import HOUR, REFERRERS, Reference, Rules
from tests.support.journals import append, read_all, running, until

pytestmark = pytest.mark.logs("sent again with another value")

DAY = 24 * HOUR
LONG_AFTER = START + 300 * DAY
RULES = Rules(window=2 * DAY, late=DAY, model="position_based", max_touches=10, max_visitors=4)
SOURCES = ("search", "mail", "social", "partner")
CLICKS = ("", "", "", "?gclid=a", "?gclid=b", "?fbclid=c")


def busy(events: int, seed: int = 7) -> list[Record]:
    """A few weeks of a shop with 40 visitors and 8 users. Orders from its server come late, and some come twice."""
    chance, shop, records = random.Random(seed), Shop(), []
    for number in range(events):
        shop.now += chance.randrange(20 * 60_000)
        visitor = f"visitor-{chance.randrange(40)}"
        kind, age = chance.random(), chance.choice([0, 0, 0, HOUR])
        if kind < 0.3:
            records.append(shop.touch(visitor, chance.choice(SOURCES), age=age))
        elif kind < 0.75:
            page = {"url": f"https://shop.example/{chance.choice(CLICKS)}", "referrer": chance.choice([*REFERRERS, ""])}
            session = 1000 * (number // 500) + int(visitor[8:])
            records.append(shop.event("Page View", visitor, context={"page": page}, age=age, session=session))
        elif kind < 0.9:
            records.append(shop.identify(visitor, f"user-{chance.randrange(8)}"))
        elif kind < 0.98:
            order_id = f"o-{number - chance.choice([0, 0, 0, 1, 2])}"
            records.append(shop.order(visitor, order_id, chance.choice([40, 12.5]), age=chance.choice([0, HOUR])))
        else:
            records.append(shop.refund(f"o-{number - chance.randrange(40)}", chance.choice([None, 5])))
    return records


def reaches(status: ConsumerStatus, position: int) -> bool:
    return status.position >= position


async def at_the_time(attribution: Attribution, records: list[Record]) -> None:
    """The bytes derived by a consumer that reads the records soon after their receipt."""
    now = records[0].at
    async with running(attribution.backend, attribution.consumer, now=lambda: now) as (status,):
        for start in range(0, len(records), 50):
            some = records[start : start + 50]
            now = some[-1].at
            await until(partial(reaches, status, await attribution.append(some)))


async def test_a_replay_gives_the_same_bytes(tmp_path: Path) -> None:
    records = busy(900)
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    async with attributing(tmp_path / "first", RULES) as first:
        await at_the_time(first, records)
        whole = await read_all(first.backend.journal)
        derived = await first.derived()
    agrees(derived, Reference(RULES, [record.decode() for record in records]))
    assert len(derived) > 60
    async with attributing(tmp_path / "again", RULES) as again:
        await append(again.backend, whole)  # including the derived records, which the consumer ignores
        await again.work_off(repeat(177), LONG_AFTER)
        assert await again.derived() == derived * 2


async def test_lag_changes_nothing(tmp_path: Path) -> None:
    """The consumer stops for more records than it reads at once, and continues three weeks later."""
    records = busy(1700)
    (tmp_path / "never late").mkdir()
    (tmp_path / "late").mkdir()
    async with attributing(tmp_path / "never late", RULES) as attribution:
        await at_the_time(attribution, records)
        expected = await attribution.derived()
    async with attributing(tmp_path / "late", RULES) as attribution:
        assert len(records) - 400 > attribution.consumer.max_records
        await at_the_time(attribution, records[:400])
        await append(attribution.backend, records[400:])
        now = records[400].at + 21 * DAY
        async with running(attribution.backend, attribution.consumer, now=lambda: now, patience=60):
            pass
        assert await attribution.derived() == expected
    assert len(expected) > 100


def killed(folder: Path, processed: int, turns: int) -> None:
    """Run the consumer for `processed` records and some turns of the event loop, and then kill the process."""

    async def work() -> None:
        async with attributing(folder, RULES) as attribution:
            attribution.consumer.max_records = 5
            async with running(attribution.backend, attribution.consumer, now=lambda: LONG_AFTER) as (status,):
                await until(lambda: status.held)  # the lease of the killed one must end
                while status.processed < processed:  # noqa: ASYNC110 - it must stop soon after
                    # The lease of a killed process lasts for a while.
                    await asyncio.sleep(0 if status.held else 0.001)
                for _ in range(turns):
                    await asyncio.sleep(0)
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(work())


def test_a_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    records, chance = busy(400), random.Random(1)

    async def received(folder: Path) -> None:
        async with attributing(folder, RULES) as attribution:
            await append(attribution.backend, records)

    async def worked_off(folder: Path) -> tuple[int, list[bytes]]:
        """The number of records derived before the restart, and all derived records."""
        async with attributing(folder, RULES) as attribution:
            before = len(await attribution.derived())
            await attribution.work_off(repeat(1000), LONG_AFTER)
            return before, await attribution.derived()

    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        asyncio.run(received(tmp_path / name))
    for _ in range(12):
        arguments = (tmp_path / "killed", chance.randrange(1, 20), chance.randrange(100))
        process = multiprocessing.get_context("fork").Process(target=killed, args=arguments)
        process.start()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
    _, undisturbed = asyncio.run(worked_off(tmp_path / "undisturbed"))
    before, after_kills = asyncio.run(worked_off(tmp_path / "killed"))
    assert 0 < before < len(undisturbed)
    assert after_kills == undisturbed
