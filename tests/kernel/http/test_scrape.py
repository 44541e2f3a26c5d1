"""The cost of a scrape for the event loop, and correct values while the loop changes them."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome, Refusal
from ingestd.config import OpsOptions
from ingestd.http.ops import Exposition, OwnHosts, make_ops_app
from ingestd.observability.metrics import Metrics
from ingestd.validation.validator import Validator
from tests.support.daemon import PATIENCE
from tests.support.scrape import parse

KEYS = [*sorted(Validator.load(None).keys), ""]
SCRAPES = 30
MOST_SECONDS = 0.005
"""The most processor time of the loop's thread for a scrape: ten times the measured time."""


class Held(Collector):
    """Waits for `go`, and then shows the number of its calls."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun = threading.Event()
        self.go = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        self.begun.set()
        assert self.go.wait(PATIENCE), "the event loop was blocked meanwhile"
        yield GaugeMetricFamily("asked", "how often", self.asked)


def held() -> tuple[Held, Exposition]:
    registry = CollectorRegistry()
    collector = Held()
    registry.register(collector)
    return collector, Exposition(registry)


def full_house() -> Metrics:
    """Metrics with every sample that requests can make, and more."""
    metrics = Metrics()
    for endpoint in Endpoint.BUILT_IN:
        for key in KEYS:
            for outcome in Outcome:
                metrics.count(endpoint, key, outcome)
                metrics.took(endpoint, 0.003)
    return metrics


async def test_the_loop_runs_while_a_scrape_is_rendered() -> None:
    collector, exposition = held()
    rendering = asyncio.create_task(exposition.render())
    await asyncio.to_thread(collector.begun.wait, PATIENCE)
    collector.go.set()  # impossible if the rendering blocked the loop
    assert b"asked 1.0" in await rendering


async def test_scrapes_during_a_rendering_share_the_next_one() -> None:
    collector, exposition = held()
    first = asyncio.create_task(exposition.render())
    await asyncio.to_thread(collector.begun.wait, PATIENCE)
    others = [asyncio.create_task(exposition.render()) for _ in range(20)]
    await asyncio.sleep(0)
    others.pop().cancel()  # this does not affect the others
    collector.go.set()
    assert b"asked 1.0" in await first
    assert all([b"asked 2.0" in await other for other in others])
    assert b"asked 3.0" in await exposition.render()


async def test_a_scrape_that_fails_is_followed_by_others() -> None:
    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise LookupError("a plugin's fault")

    registry = CollectorRegistry()
    broken = Broken()
    exposition = Exposition(registry)
    registry.register(broken)
    for _ in range(2):
        with pytest.raises(LookupError):
            await exposition.render()
    registry.unregister(broken)
    assert await exposition.render() == b""


async def test_a_scrape_costs_the_loop_little() -> None:
    """By the processor time of the loop's thread: how busy the machine is makes no difference."""
    server = HTTPServer(make_ops_app(full_house().registry, lambda: None, OwnHosts(OpsOptions())))
    sock, port = bind_unused_port()
    server.add_socket(sock)

    def scrape(times: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for _ in range(times):
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            length = len(connection.getresponse().read())
        connection.close()
        return length

    try:
        assert await asyncio.to_thread(scrape, 1) > 2000
        before = time.thread_time()
        await asyncio.to_thread(scrape, SCRAPES)
        spent = (time.thread_time() - before) / SCRAPES
    finally:
        server.stop()
        await server.close_all_connections()
    assert spent < MOST_SECONDS


async def test_metrics_are_correct_despite_changes_during_the_rendering() -> None:
    metrics = Metrics()
    exposition = Exposition(metrics.registry)
    counted = 0
    for endpoint in (Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS):
        for key in KEYS:
            rendering = asyncio.create_task(exposition.render())
            await asyncio.sleep(0)
            for outcome in Outcome:
                for _ in range(20):
                    metrics.count(endpoint, key, outcome)
                    metrics.took(endpoint, 0.001)
                    counted += 1
            shown = parse(await rendering)["ingestd_events_total"]
            assert sum(sample.value for sample in shown.samples) <= counted
    shown = parse(await exposition.render())["ingestd_events_total"]
    assert sum(sample.value for sample in shown.samples) == counted


def test_each_labelled_child_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding a child by its labels costs more than counting."""
    looked_up: list[tuple[object, ...]] = []
    labels = MetricWrapperBase.labels

    def counting(self: MetricWrapperBase, *values: object, **named: object) -> MetricWrapperBase:
        looked_up.append((self, *values, *named.items()))
        return labels(self, *values, **named)

    monkeypatch.setattr(MetricWrapperBase, "labels", counting)
    metrics = Metrics()
    for _ in range(3):
        for endpoint in Endpoint.BUILT_IN:
            for outcome in Outcome:
                metrics.count(endpoint, "Page View", outcome)
                metrics.took(endpoint, 0.001)
        for reason in Refusal:
            metrics.refused(reason)
    assert len(looked_up) == len({*looked_up}) >= len(Refusal)
