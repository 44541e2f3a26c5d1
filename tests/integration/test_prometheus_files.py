"""conf/prometheus: Prometheus takes its files as they are, and they ask only for what ingestd shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import ProcessCollector

from tests.support.prometheus_server import CONF, PrometheusServer, prometheus_server, promtool
from tests.support.promql import Selector, grouped, selectors
from tests.support.scrape import documented, tables

RULES = [CONF / "ingestd.recording.yml", CONF / "ingestd.alerts.yml"]
TESTS = [CONF / "ingestd.tests.yml", CONF / "ingestd.tests.day.yml"]
DASHBOARD = json.loads((CONF / "ingestd.dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGET = {"job", "instance"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """With the configuration as it is shipped. Nobody need listen where that looks."""
    with prometheus_server(CONF / "prometheus.yml", tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(prometheus: PrometheusServer) -> set[str]:
    return {rule["name"] for rule in prometheus.rules("recording")}


@pytest.fixture(scope="module")
def expressions(prometheus: PrometheusServer) -> dict[str, str]:
    """Of all rules and of the dashboard, by where they stand."""
    rules = [*prometheus.rules("recording"), *prometheus.rules("alerting")]
    # Two rules may record the same series, of different labels.
    return {f"{rule['name']} {rule.get('labels', '')}": rule["query"] for rule in rules} | of_the_dashboard()


def of_the_dashboard() -> dict[str, str]:
    found = {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
    found |= {note["name"]: note["expr"] for note in DASHBOARD["annotations"]["list"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"${variable['name']}"] = re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"])
    return found


def labels_of(metric: str) -> set[str] | None:
    """Of a metric that ingestd, its client library or Prometheus shows; None if none does."""
    name, _, part = metric.rpartition("_")
    shown = documented()
    if metric in shown and shown[metric].type != "histogram":
        return {*shown[metric].labels}
    if part in {"bucket", "count", "sum"} and name in shown and shown[name].type == "histogram":
        return {*shown[name].labels} | ({"le"} if part == "bucket" else set())
    if metric in {sample.name for family in ProcessCollector(registry=None).collect() for sample in family.samples}:
        return set()
    return {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}.get(metric)


def values_of(selector: Selector, label: str) -> set[str] | None:
    """The values a label may have; None if there is no list of them."""
    if label == "outcome":
        return {row[0].strip("`") for row in tables()["outcome"]}
    if label in {"reason", "result", "by"}:
        return {*documented()[selector.metric].values}
    return None


def test_promtool_finds_nothing_wrong() -> None:
    for done in (
        promtool("check", "config", CONF / "prometheus.yml"),
        promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES),
    ):
        assert done.returncode == 0, done.stderr.decode()
        assert done.stderr == b""


def test_the_tests_of_the_rules_pass() -> None:
    done = promtool("test", "rules", *TESTS)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_of_every_alert_it_is_tested_that_it_fires_and_that_it_does_not(prometheus: PrometheusServer) -> None:
    tested: dict[str, str] = {}
    for file in TESTS:
        groups = re.split(r"^  - name: (\w+)$", file.read_text(), flags=re.MULTILINE)[1:]
        tested |= dict(zip(groups[::2], groups[1::2], strict=True))
    alerts = {rule["name"] for rule in prometheus.rules("alerting")}
    assert {*tested} - {"recorded"} == alerts
    for alert in alerts:
        moments = tested[alert].split("- expr:")[1:]
        assert any(f'alertname="{alert}"' in moment for moment in moments), alert
        assert any(f'alertname="{alert}"' not in moment for moment in moments), alert


def test_rules_and_dashboard_ask_only_for_what_is_shown(expressions: dict[str, str], recorded: set[str]) -> None:
    own = {label for metric in documented().values() for label in metric.labels} | {"law"}
    for place, expression in expressions.items():
        asked = [*selectors(expression)]
        assert asked, place
        for selector in asked:
            known = own if selector.metric in recorded else labels_of(selector.metric)
            assert known is not None, f"{place}: nobody shows {selector.metric}"
            for label, pattern in selector.matches:
                assert label in known | TARGET, f"{place}: {selector.metric} has no {label}"
                values = values_of(selector, label) if selector.metric not in recorded or label == "outcome" else None
                assert values is None or {*pattern.split("|")} <= values, f"{place}: {label} is never {pattern}"
        assert {*grouped(expression)} <= own | TARGET | {"le"}, place


def test_what_is_not_shown_would_be_found() -> None:
    wrong = 'sum without (sink) (rate(ingestd_sink_delivred_total{sink="a"}[5m])) > on (job) up and ingestd_store_up'
    assert [*selectors(wrong)] == [
        Selector("ingestd_sink_delivred_total", (("sink", "a"),)), Selector("up", ()), Selector("ingestd_store_up", ()),
    ]  # fmt: skip
    assert grouped(wrong) == ["sink", "job"]
    assert labels_of("ingestd_sink_delivred_total") is None
    assert labels_of("ingestd_http_request_duration_seconds") is None
    assert labels_of("ingestd_http_request_duration_seconds_bucket") == {"endpoint", "le"}


def test_every_series_that_is_recorded_is_used(expressions: dict[str, str], recorded: set[str]) -> None:
    used = {selector.metric for expression in expressions.values() for selector in selectors(expression)}
    assert recorded - used == set()


def test_alerts_say_how_urgent_they_are_and_what_to_do(prometheus: PrometheusServer) -> None:
    for alert in prometheus.rules("alerting"):
        assert alert["labels"].keys() == {"severity"}, alert["name"]
        assert alert["labels"]["severity"] in {"critical", "warning"}, alert["name"]
        notes = alert["annotations"]
        assert notes.keys() == {"summary", "description", "runbook"}, alert["name"]
        assert notes["runbook"] == f"docs/monitoring.md#{alert['name'].lower()}"
        assert notes["description"].endswith("."), alert["name"]


def test_the_dashboard_holds_together() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, int] = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(column < 24 for column, _ in cells), panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert_asks_the_chosen_prometheus(panel)
        assert all("job=" in target["expr"] and "instance=" in target["expr"] for target in panel["targets"])


def assert_asks_the_chosen_prometheus(panel: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert all(target["datasource"] == chosen for target in panel["targets"])


def test_every_variable_of_the_dashboard_is_there_and_used() -> None:
    text = json.dumps(DASHBOARD["panels"])
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert {name for pair in re.findall(r"\$\{(\w+)\}|\$(\w+)", text) for name in pair if name} == variables
