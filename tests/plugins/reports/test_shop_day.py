"""A day of two shops: the report equals an independent count over the exported journal, and the overview's sums."""

from __future__ import annotations

import asyncio
import json
import random
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.plugins.attribution.arrivals import Arrivals
from ingestd.plugins.attribution.models import MODELS
from ingestd.plugins.attribution.report import Row
from ingestd.plugins.attribution.rollups import PERIODS, sum_up
from ingestd.plugins.attribution.rollups import read as read_rollups
from ingestd.plugins.attribution.rollups import rows_of as rows_of_rollups
from ingestd.plugins.attribution.touches import Exclusions
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.periods import TimeZone
from ingestd.plugins.reports.reading import ReportRules
from ingestd.plugins.reports.report import Report
from ingestd.plugins.reports.report_command import report
from ingestd.plugins.sources import Channels, SourceRules
from ingestd.storage.placements import index_of_tenant
from tests.plugins.attribution.test_redis import on_redis, opener
from tests.plugins.attribution.test_rollups import cells
from tests.plugins.reports.test_reports import touch_of
from tests.support.attribution import START, attributing
from tests.support.attribution_reference import Rules
from tests.support.backends import PluginDaemon, sqlite_backend
from tests.support.journals import read_all
from tests.support.redis_cluster import cluster_backend, redis_cluster
from tests.support.redis_server import redis_server
from tests.support.shop_day import DAY, TENANTS, count_day, first_events, make_day

HOUR = DAY // 24
BY = ["channel", "source", "medium"]
ARRIVALS = Arrivals(Exclusions((), (), ()), SourceRules(), "fallback")
RULES = ReportRules(ARRIVALS, Channels(), TimeZone("UTC"), DAY)


@asynccontextmanager
async def opened(store: str, folder: Path) -> AsyncIterator[tuple[Backend, Sequence[Backend]]]:
    """The back end, and that of each partition."""
    if store == "sqlite":
        async with sqlite_backend(folder) as backend:
            yield backend, [backend]
    elif store == "redis":
        with redis_server(folder, {"appendfsync": "no"}) as server:
            async with opener(server, on_redis)(folder) as backend:
                yield backend, [backend]
    else:
        with redis_cluster(folder, replicas=False, options={"cluster-node-timeout": "5000"}) as nodes:
            cluster = cluster_backend(nodes, prefix="day:", partitions=2, timeout=5, patience=10)
            await cluster.open(serving=True)
            try:
                yield cluster, cluster.backends
            finally:
                await cluster.close()


async def attribute(
    folder: Path, backend: Backend, records: Sequence[Record], seed: int, rules: Rules, most: int = 500
) -> None:
    """Let the consumer work off the records in steps of any size. Each time another daemon goes on with the next."""

    @asynccontextmanager
    async def opened_before(_: Path) -> AsyncIterator[Backend]:
        yield backend

    chance, left = random.Random(seed), [*records]
    while left:
        taken, left = left[: (some := chance.randrange(most // 5, most))], left[some:]
        async with attributing(folder, rules, opened_before) as attribution:
            await attribution.append(taken)
            await attribution.work_off((chance.randrange(1, 90) for _ in range(9000)), taken[-1].at)


def rows_of(printed: str) -> tuple[dict[Any, int], dict[Any, int], dict[Any, tuple[float, float]]]:
    """Sessions, visitors, and orders with net revenue, each without empty rows."""
    rows = [json.loads(line) for line in printed.splitlines()]
    names = [tuple(row[each] for each in BY) for row in rows]
    numbers = [
        {name: row[member] for name, row in zip(names, rows, strict=True) if row[member]}
        for member in ("sessions", "visitors")
    ]
    money = {
        (name, row["currency"]): (row["orders"], row["net"])
        for name, row in zip(names, rows, strict=True)
        if row["orders"]
    }
    return numbers[0], numbers[1], money


@pytest.mark.parametrize("store", ["sqlite", "redis", "cluster"])
async def test_the_report_of_a_day_equals_a_count_over_the_journal(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = make_day(seed=60, visitors=120)
    async with opened(store, tmp_path) as (backend, parts):
        for index, part in enumerate(parts):
            mine = [each for each in records if index_of_tenant(each.decode()["tenant"], len(parts)) == index]
            await attribute(tmp_path, part, mine, 60, Rules(), most=2000)
        exported = [each.decode() for part in parts for each in await read_all(part.journal)]
        for tenant in TENANTS:
            for model, since, until in [
                (None, START, START + 2 * DAY),
                (None, START + 6 * HOUR, START + 18 * HOUR),
                ("linear", START, START + DAY),
            ]:
                capsys.readouterr()
                arguments = Namespace(
                    by=BY, since=since, until=until, every=None, compare=False, paths=False, model=model, tenant=tenant,
                    time_zone=TimeZone("UTC"), keep_case=False, json=True, csv=False,
                )  # fmt: skip
                await report(arguments, PluginDaemon(backend), RULES)
                times = format_time(since), format_time(until)
                counted = count_day(exported, tenant, *times, is_linear=model == "linear")
                sessions, visitors, money = rows_of(capsys.readouterr().out)
                assert sessions == {name: row.sessions for (name, _), row in counted.items() if row.sessions}
                assert visitors == {name: row.visitors for (name, _), row in counted.items() if row.visitors}
                assert money == {
                    key: pytest.approx((float(row.orders), float(row.net)), abs=0.011 if model else 1e-9)
                    for key, row in counted.items()
                    if row.orders
                }
                assert len(sessions) > 10 < len(money)


@given(seed=st.integers(0, 10**6), referrers=st.sampled_from(["fallback", "touchpoints", "off"]))
def test_the_overview_has_the_sums_of_the_report_however_the_records_are_cut(seed: int, referrers: Any) -> None:
    """And each session counts once."""
    asyncio.run(
        agree(make_day(seed, visitors=8, late=0.5), seed, Rules(window=6 * HOUR, late=HOUR, referrers=referrers))
    )


async def agree(records: Sequence[Record], seed: int, rules: Rules) -> None:
    now = records[-1].at
    with TemporaryDirectory() as name:
        async with sqlite_backend(Path(name)) as backend:
            await attribute(Path(name), backend, records, seed, rules, most=90)
            journal = await read_all(backend.journal)
            for tenant, model, period in product((None, *TENANTS), MODELS, ("day", "week")):
                since = PERIODS[period].since(now)
                made = Report(columns_of(["campaign"]), [model], numbers=partial(since_then, since), tenant=tenant)
                found = rows_of_report(made, journal)
                rollups = await read_rollups(backend.store.begin(now), PERIODS[period], tenant)
                assert cells(found) == cells(rows_of_rollups(sum_up(rollups), model))
    sessions = Report(columns_of(["channel"]), read_touch=touch_of)
    sent = list(enumerate(each.decode() for each in records))
    assert sum(row.sessions or 0 for row in rows_of_report(sessions, journal)) == sum(
        len(first_events([each for each in sent if each[1]["tenant"] == tenant])) for tenant in TENANTS
    )


def since_then(since: int, at: int) -> int | None:
    return 0 if at >= since else None


def rows_of_report(made: Report, records: Sequence[Record]) -> list[Row]:
    for record in records:
        made.add(record)
    return [line.row for line in made.lines() if line.row.orders or line.row.sessions]
