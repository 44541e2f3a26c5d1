"""The data of the operators' page: rates, quantiles, the last lines, and a limit on how often they are computed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api import hookimpl
from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome
from ingestd.api.panels import Filter, Option, Panel
from ingestd.api.store import Store
from ingestd.config import JournalOptions
from ingestd.consumers.group import Consumers
from ingestd.observability.metrics import Metrics
from ingestd.observability.metrics.counts import BOUNDS, Counts
from ingestd.plugins.console.dashboard import Overview, Panels, Sources
from ingestd.plugins.console.dashboard.history import GROUPS, History, Sample, point, quantile
from ingestd.plugins.console.recent_lines import RecentLines, presentable
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.storage.retention import Retention
from ingestd.storage.retentions import Retentions
from tests.support.backends import sqlite_backend
from tests.support.hooks import hooks_of


def counts(events: Mapping[tuple[str, str], float] | None = None, sessions: float = 0) -> Counts:
    return Counts(events or {}, {}, {}, sessions)


def sample(at: float, counted: Counts) -> Sample:
    return Sample(at, round(at * 1000), counted, {})


# Rates


def test_every_outcome_is_in_a_group() -> None:
    assert {*GROUPS} == {*Outcome}


def test_a_point_has_the_rates_since_the_one_before() -> None:
    before = sample(100, counts({("", "invalid"): 5, ("Page View", "accepted"): 10}, sessions=2))
    events = {("", "invalid"): 5.0, ("Page View", "accepted"): 30, ("Cart Viewed", "accepted"): 5, ("", "failed"): 1}
    found = point(before, sample(105, counts({**events, ("Page View", "duplicate"): 2}, sessions=3)))
    assert (found.accepted, found.skipped, found.refused, found.failed) == (5, 0.4, 0, 0.2)
    assert found.sessions == 12
    assert (found.p50, found.p99) == (None, None)


@given(st.lists(st.floats(0.1, 100), max_size=400), st.floats(1, 70))
def test_history_is_bounded_and_rates_use_the_newest_point_old_enough(steps: list[float], seconds: float) -> None:
    history, now = History(), 0.0
    for step in steps:
        history.add(sample(now, counts()))
        now += step
    assert len(history.points) <= 180
    last = sample(now, counts())
    before = history.before(last, seconds)
    assert before in history._samples or not steps
    younger = [each for each in history._samples if each.at > before.at]
    assert all(now - each.at < seconds for each in younger)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_where_it_belongs(values: list[float], share: float) -> None:
    buckets = [float(sum(value <= bound for value in values)) for bound in BOUNDS] + [float(len(values))]
    found = quantile(share, buckets)
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    assert found is not None
    low = max([0.0, *(bound for bound in BOUNDS if bound < exact)])
    assert low <= found <= min(bound for bound in BOUNDS if bound >= exact)


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile(0.5, []) is None
    assert quantile(0.5, [0.0] * (len(BOUNDS) + 1)) is None


def test_counts_are_those_of_the_metrics() -> None:
    metrics = Metrics()
    metrics.count(Endpoint.TRACK, "Page View", Outcome.ACCEPTED)
    metrics.took(Endpoint.TRACK, 0.002)
    metrics.count(Endpoint.CUSTOMER_EVENTS, "Page View", Outcome.ACCEPTED)
    metrics.took(Endpoint.CUSTOMER_EVENTS, 0.2)
    metrics.count(Endpoint.IDENTIFY, "", Outcome.INVALID)
    metrics.took(Endpoint.IDENTIFY, 9)
    metrics.session_begun()
    found = metrics.counts()
    assert found.events == {("Page View", "accepted"): 2}
    assert (found.identifies, found.sessions) == ({"invalid": 1}, 1)
    assert found.durations["track"] == (0, *[1] * len(BOUNDS))
    assert found.durations["identify"] == (*[0] * len(BOUNDS), 1)


# The last lines


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, RecentLines]]:
    log, kept = logging.getLogger("of.this.test"), RecentLines()
    log.addHandler(kept)
    yield log, kept
    log.removeHandler(kept)


@pytest.mark.logs("it fails", "quite")
def test_lines_that_differ_only_in_numbers_are_one_row(lines: tuple[logging.Logger, RecentLines]) -> None:
    log, kept = lines
    log.info("a line below WARNING")
    for number in range(3):
        log.warning("it fails (failure %d in a row)", number)
    log.error("quite another")
    log.warning("it fails (failure 17 in a row)")
    found = [(line.message, line.times, line.level) for line in kept.newest_first()]
    assert found == [("it fails (failure 17 in a row)", 4, "warning"), ("quite another", 1, "error")]


@pytest.mark.logs("it fails")
def test_the_number_of_lines_is_bounded(lines: tuple[logging.Logger, RecentLines]) -> None:
    log, kept = lines
    for number in range(100):
        log.warning("it fails %s", "x" * number)
    assert kept.newest_first()[0].message == f"it fails {'x' * 99}"
    assert len(kept.newest_first()) == 20


@pytest.mark.logs("it fails")
def test_only_the_class_of_an_exception_is_shown(lines: tuple[logging.Logger, RecentLines]) -> None:
    log, kept = lines
    try:
        raise LookupError("what a customer wrote")
    except LookupError:
        log.exception("it fails")
    (line,) = kept.newest_first()
    assert (line.message, line.error) == ("it fails", "LookupError")


@pytest.mark.logs("POST track")
def test_the_address_of_a_client_is_not_shown(lines: tuple[logging.Logger, RecentLines]) -> None:
    log, kept = lines
    log.warning("POST track 503 in 3 ms from 192.0.2.7", extra={"ingestd_fields": {"peer": "192.0.2.7"}})
    assert kept.newest_first()[0].message == "POST track 503 in 3 ms from …"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the order 'o-1' of shop", "the order '…' of shop"),
        ("a \"b 'c' d\" e", 'a "…" e'),
        (r"a 'it\'s' b", "a '…' b"),
        ("it can't be, and shouldn't", "it can't be, and shouldn't"),
        ("refused: ann@shop.example, again", "refused: …, again"),
        ("x-signature: abcdefgh", "x-signature: ***"),
        ("two\nlines\x1b[31m", "two lines [31m"),
        ("x" * 400, "x" * 299 + "…"),
    ],
    ids=str,
)
def test_quoted_text_is_not_shown(text: str, shown: str) -> None:
    assert presentable(text) == shown


# Computing the page


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """The sources of a daemon without consumers, before its journal is open."""
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0)
    consumers = Consumers(backend.journal, backend.store, [], died=lambda name, error: None)
    retention = Retention(backend.journal, JournalOptions(), consumers, refuse=lambda problem: None)
    return Sources(Metrics(), lambda: None, Retentions([retention]), RecentLines(), "/etc/ingestd.toml")


async def test_the_page_is_computed_at_most_once_a_second(sources: Sources) -> None:
    now, asked = 100.0, 0

    async def panels(selection: Mapping[str, str]) -> Sequence[Panel]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return ()

    overview = Overview(sources, panels, clock=lambda: now)
    answers = await asyncio.gather(*(overview.render() for _ in range(50)))
    assert asked == 1
    assert len({*answers}) == 1
    now += 0.99
    assert await overview.render() == answers[0]
    now += 0.02
    assert await overview.render() != answers[0]
    assert asked == 2


async def test_each_selection_has_its_own_answer_once_a_second(sources: Sources) -> None:
    now, asked = 100.0, []
    period = Filter("period", "Period", [Option("day", "24 hours"), Option("week", "7 days")], "day")

    async def panels(selection: Mapping[str, str]) -> Sequence[Panel]:
        asked.append(dict(selection))
        return [Panel(selection.get("period", "day"), [], filters=[period])]

    async def titles(overview: Overview, parameters: Mapping[str, str]) -> list[str]:
        return [panel["title"] for panel in json.loads(await overview.render(parameters))["panels"]]

    overview = Overview(sources, panels, clock=lambda: now)
    for _ in range(3):
        assert await titles(overview, {"period": "week"}) == ["week"]
        assert await titles(overview, {"period": "day", "of no filter": "x"}) == ["day"]
        assert await titles(overview, {"of no filter": "y"}) == ["day"]
    assert asked == [{}, {"period": "week"}, {"period": "day"}]
    for number in range(100):
        await overview.render({"period": str(number)})
    assert len(overview._made) <= 17
    now += 1
    await overview.render()
    assert len(overview._made) == 1


async def test_a_viewer_who_leaves_does_not_disturb_the_others(sources: Sources) -> None:
    overview = Overview(sources, lambda selection: asyncio.sleep(0.01, ()))
    first, second = (asyncio.create_task(overview.render()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert json.loads(await second)["ready"] is True


class Fine:
    @hookimpl
    async def show_panel(self) -> Panel | None:
        return Panel("fine", [])


class Broken:
    broken = True

    @hookimpl
    def show_panel(self, store: Store) -> Panel | None:
        if self.broken:
            raise LookupError("a plugin's fault")
        return None


@pytest.mark.logs("^ingestd.overview WARNING plugin broken: show_panel failed: LookupError")
async def test_a_plugin_with_a_failing_panel_is_logged_once_and_affects_no_other(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken = Broken()
    async with sqlite_backend(tmp_path) as backend:
        hooks = hooks_of(broken=broken, fine=Fine())
        panels = Panels(lambda: hooks, backend.store)
        for _ in range(3):
            assert {panel.title for panel in await panels.ask({})} == {"broken", "fine"}
        broken.broken = False
        assert [panel.title for panel in await panels.ask({})] == ["fine"]
    assert len([record for record in caplog.records if record.name == "ingestd.overview"]) == 1
