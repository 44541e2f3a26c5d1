"""A real Prometheus watches real daemons with the rules of conf/prometheus, and reports only failing daemons.

All times of the rules are divided by 150: five minutes are two seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.ports import free_port
from tests.support.prometheus_server import CONF, PrometheusServer, prometheus_server

FASTER = 150
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EVENTS = 5
# A machine that runs other tests may be slow or have a full disk. That is no fault of a daemon.
OF_THE_MACHINE = {
    "IngestdDown", "IngestdLatency", "IngestdLoopBlocked", "IngestdCommitsSlow", "IngestdDiskFullSoon",
    "IngestdDiskLow",
}  # fmt: skip
# Series that exist only while a value changes, or only with Redis.
NOT_ALWAYS = {"instance:ingestd_journal_left:seconds", "instance_file:ingestd_sqlite_disk_left:seconds"}
WITHOUT_DATA = {"Full in", "Redis"}


class Watched(NamedTuple):
    prometheus: PrometheusServer
    shop: Shop
    """The shop of the healthy daemon."""
    well: str
    """The instances."""
    stuck: str
    nobody: str
    archive: Path
    """The folder that blocks the file of the stuck daemon's sink."""


def hurry(text: str) -> str:
    """The same rules with shortened times."""
    return re.sub(
        r"\b(\d+)([smhd])\b", lambda found: f"{int(found[1]) * SECONDS[found[2]] * 1000 // FASTER}ms", text
    )  # fmt: skip


def configure(folder: Path, instances: list[str]) -> Path:
    """Writes the shipped configuration with shortened times and with these targets."""
    for name in ("ingestd.recording.yml", "ingestd.alerts.yml"):
        (folder / name).write_text(hurry((CONF / name).read_text()))
    text = (CONF / "prometheus.yml").read_text()
    assert text.count("15s") == 2
    assert text.count('["127.0.0.1:9464"]') == 1
    # The scrape interval is shortened less, because a scrape takes some time.
    text = text.replace("15s", "250ms").replace('["127.0.0.1:9464"]', json.dumps(instances))
    config = folder / "prometheus.yml"
    config.write_text(text)
    return config


def use(shop: Shop, daemon: Daemon) -> None:
    """Sends requests of all kinds, so that all panels have data."""
    order = {"key": "Order Completed", "anonymousId": "visitor", "data": {"order_id": "o-1", "revenue": 9}}
    for number in range(EVENTS):
        event = {"key": "Page View", "anonymousId": f"visitor-{number}", "data": {}}
        assert daemon.post("/track", event, shop.public.id).status == 200
    assert daemon.post("/track", order, shop.public.id).status == 200
    assert daemon.post("/track", event, "wrong").status == 401
    assert daemon.post("/identify/public", {"anonymousId": "visitor"}, shop.public.id).status == 200


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A healthy daemon, a daemon with a sink that cannot write, and an address without a listener."""
    shops = [
        Shop(tmp_path_factory.mktemp("well"), {"journal": 'max_size = "1GiB"'}),
        Shop(
            tmp_path_factory.mktemp("stuck"),
            {"sinks.archive": 'retry = { max = "500ms" }', "http": 'shutdown_timeout = "500ms"'},
        ),
    ]
    shops[1].archive.mkdir()
    # Prometheus looks for its targets after five seconds. The daemons start during that time.
    ports = [free_port() for _ in range(3)]
    well, stuck, nobody = instances = [f"127.0.0.1:{port}" for port in ports]
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as running:
        prometheus = running.enter_context(prometheus_server(configure(folder, instances), folder))
        for shop, port in zip(shops, ports, strict=False):
            shop.config.write_text(
                shop.config.read_text().replace('[ops]\nlisten = "127.0.0.1:0"', f'[ops]\nlisten = "127.0.0.1:{port}"')
            )
            use(shop, running.enter_context(shop.serve()))
        yield Watched(prometheus, shops[0], well, stuck, nobody, shops[1].archive)


def alerts(watched: Watched, instance: str, state: str) -> dict[str, Any]:
    """The alerts about a target in this state, by name."""
    found = watched.prometheus.get("alerts")["alerts"]
    return {
        alert["labels"]["alertname"]: alert
        for alert in found
        if alert["labels"].get("instance") == instance and alert["state"] == state
    }


def number(watched: Watched, expression: str) -> float | None:
    """The only value of an expression, or None if it has no value (yet)."""
    found = watched.prometheus.query(expression)
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else None


def test_daemons_that_answer_are_up(watched: Watched) -> None:
    for instance, up in ((watched.well, 1), (watched.stuck, 1), (watched.nobody, 0)):
        wait_until(lambda: number(watched, f'up{{instance="{instance}"}}') == up)  # noqa: B023 - awaited at once


def test_requests_are_recorded_and_the_counts_agree(watched: Watched) -> None:
    def value(series: str, labels: str = "") -> float | None:
        return number(watched, f'{series}{{instance="{watched.well}"{labels}}}')

    # The events, an order and an identify request.
    wait_until(lambda: value("instance_outcome:ingestd_outcomes:sum", ',outcome="accepted"') == EVENTS + 2)
    assert value("instance_outcome:ingestd_outcomes:sum", ',outcome="unauthorized"') == 1
    records = len(watched.shop.exported())
    wait_until(lambda: value("instance:ingestd_journal_appended:sum") == records)
    wait_until(lambda: value("instance_sink:ingestd_sink_settled:sum") == records)
    law = "instance_law:ingestd_missing:sum"
    wait_until(lambda: value(law, ',law="answered is counted"') == 0)
    wait_until(lambda: value(law, ',law="accepted is stored"') == EVENTS + 2 - records)  # and attributions
    wait_until(lambda: value(law, ',law="stored is delivered"') == 0)


def test_every_rule_can_be_evaluated_and_every_series_is_recorded(watched: Watched) -> None:
    rules = [*watched.prometheus.rules("recording"), *watched.prometheus.rules("alerting")]
    wait_until(lambda: all(rule["health"] == "ok" for rule in watched.prometheus.rules("recording")))
    wait_until(lambda: all(rule["health"] == "ok" for rule in watched.prometheus.rules("alerting")))
    for name in {rule["name"] for rule in rules if rule["type"] == "recording"} - NOT_ALWAYS:
        # A rule with another prefix sums over the daemons of a job.
        series = f'{name}{{instance="{watched.well}"}}' if name.startswith("instance") else name
        wait_until(lambda: bool(watched.prometheus.query(series)))  # noqa: B023 - as above


def test_every_panel_of_the_dashboard_shows_something(watched: Watched) -> None:
    dashboard = json.loads((CONF / "ingestd.dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$job", "ingestd").replace("$instance", ".+")
            if panel["title"] in WITHOUT_DATA:
                watched.prometheus.query(hurry(expression))
            else:
                wait_until(lambda: bool(watched.prometheus.query(hurry(expression))))  # noqa: B023 - as above


def test_a_daemon_that_does_not_answer_is_reported(watched: Watched) -> None:
    wait_until(lambda: "IngestdDown" in alerts(watched, watched.nobody, "firing"))
    alert = alerts(watched, watched.nobody, "firing")["IngestdDown"]
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["summary"] == f"ingestd on {watched.nobody} does not answer"


def test_a_sink_that_is_down_is_reported_until_it_works_again(watched: Watched) -> None:
    wait_until(lambda: "IngestdSinkStuck" in alerts(watched, watched.stuck, "firing"))
    assert number(watched, f'ingestd_sink_pending{{instance="{watched.stuck}"}}')
    alert = alerts(watched, watched.stuck, "firing")["IngestdSinkStuck"]
    assert alert["annotations"]["summary"] == f"The sink archive of ingestd on {watched.stuck} takes nothing"
    assert "`ingestd sinks status archive`" in alert["annotations"]["description"]
    past = watched.prometheus.query(f'ALERTS{{alertname="IngestdSinkStuck",instance="{watched.stuck}"}}[5m]')
    assert {series["metric"]["alertstate"] for series in past} == {"pending", "firing"}
    watched.archive.rmdir()
    wait_until(lambda: not number(watched, f'ingestd_sink_pending{{instance="{watched.stuck}"}}'))
    wait_until(lambda: "IngestdSinkStuck" not in alerts(watched, watched.stuck, "firing"))


def test_nothing_is_reported_about_a_healthy_daemon(watched: Watched) -> None:
    """No alert has fired during the earlier tests, although other daemons failed."""
    past = watched.prometheus.query(f'ALERTS{{instance="{watched.well}",alertstate="firing"}}[5m]')
    assert {series["metric"]["alertname"] for series in past} <= OF_THE_MACHINE
