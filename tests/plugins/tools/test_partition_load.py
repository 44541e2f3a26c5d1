"""The load of the tenants of a partition, as `ingestd partitions show` estimates it from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.plugins.tools.partitions import look_at_load
from tests.support.backends import sqlite_backend

NOW = 1_700_000_000_000
MINUTE = 60_000


def record(tenant: str, at: int, type: str = "event", size: int = 200) -> Record:
    """A record of `size` bytes, without the 32 for its metadata."""
    bare = len(msgspec.json.encode({"tenant": tenant, "filler": ""}))
    return Record(type, at, msgspec.json.encode({"tenant": tenant, "filler": "x" * (size - bare)}))


async def append(backend: Backend, records: Sequence[Record]) -> None:
    for first in range(0, len(records), 500):
        await backend.journal.commit(records[first : first + 500], backend.store.begin(NOW))


async def test_few_records_are_counted_exactly(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        assert (await look_at_load(backend.journal, NOW)).tenants == {}
        await append(
            backend,
            [
                *[record("before", NOW - 6 * MINUTE)] * 7,
                *[record("small", NOW - 4 * MINUTE)] * 30,
                *[record("large", NOW - 2 * MINUTE)] * 300,
                *[record("small", NOW - MINUTE, "attribution")] * 30,
                *[record("small", NOW - MINUTE, "identify")] * 30,
            ],
        )
        load = await look_at_load(backend.journal, NOW)
        assert load.extent.records == 397
        # The rates are of five minutes.
        assert [*load.tenants] == ["large", "small"]
        assert load.tenants["large"] == pytest.approx((1.0, 232.0))
        assert load.tenants["small"] == pytest.approx((0.2, 0.3 * 232))
        # Ten minutes later nothing has come.
        assert (await look_at_load(backend.journal, NOW + 10 * MINUTE)).tenants == {}


async def test_the_rates_of_a_young_journal_are_of_its_life(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, [record("shop", NOW - 10_000)] * 50)
        assert (await look_at_load(backend.journal, NOW)).tenants["shop"].events == pytest.approx(5.0)
        # A clock may be wrong.
        assert (await look_at_load(backend.journal, NOW - 60 * MINUTE)).tenants["shop"].events == pytest.approx(50.0)


async def test_many_records_are_estimated_by_a_sample_over_the_whole_time(tmp_path: Path) -> None:
    random = Random(1)
    async with sqlite_backend(tmp_path) as backend:
        # At first half of the records are the first tenant's, and at last a tenth.
        shares = [0.5 if number < 6000 else 0.1 for number in range(12_000)]
        tenants = ["first" if random.random() < share else "second" for share in shares]
        await append(backend, [record(tenant, NOW - 4 * MINUTE + 20 * number) for number, tenant in enumerate(tenants)])
        load = await look_at_load(backend.journal, NOW)
        assert sum(rates.events for rates in load.tenants.values()) == pytest.approx(50.0)
        assert load.tenants["first"].events == pytest.approx(15.0, rel=0.15)
        assert load.tenants["second"].bytes == pytest.approx(35.0 * 232, rel=0.15)


async def test_long_records_count_although_few_are_read_at_once(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        for _ in range(10):
            await append(backend, [record("long", NOW - MINUTE, size=1 << 20)] * 5)
        await append(backend, [record("short", NOW - MINUTE)] * 50)
        load = await look_at_load(backend.journal, NOW)
        assert load.tenants["long"].events == pytest.approx(50 / 60)
        assert load.tenants["short"].events == pytest.approx(50 / 60)


async def test_a_sample_does_not_underrate_long_records(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        records = [record("short", NOW - MINUTE)] * 1500 + [record("long", NOW - MINUTE, size=100 << 10)] * 1500
        await append(backend, records)
        load = await look_at_load(backend.journal, NOW)
        assert load.tenants["long"].events == pytest.approx(25.0, rel=0.15)
        assert load.tenants["short"].events == pytest.approx(25.0, rel=0.15)
