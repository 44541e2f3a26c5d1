"""conf/prometheus: Prometheus accepts the files, and they use only metrics that ingestd has."""

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
WATCHDOG = "IngestdWatchdog"
"""It always fires."""
DASHBOARD = json.loads((CONF / "ingestd.dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGET = {"job", "instance"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Prometheus with the shipped configuration. Its targets need not exist."""
    with prometheus_server(CONF / "prometheus.yml", tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(prometheus: PrometheusServer) -> set[str]:
    return {rule["name"] for rule in prometheus.rules("recording")}


@pytest.fixture(scope="module")
def expressions(prometheus: PrometheusServer) -> dict[str, str]:
    """The expressions of all rules and of the dashboard, by their names."""
    rules = [*prometheus.rules("recording"), *prometheus.rules("alerting")]
    # Two rules may record the same series with different labels.
    return {f"{rule['name']} {rule.get('labels', '')}": rule["query"] for rule in rules} | of_the_dashboard()


def of_the_dashboard() -> dict[str, str]:
    found = {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
    found |= {note["name"]: note["expr"] for note in DASHBOARD["annotations"]["list"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"${variable['name']}"] = re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"])
    return found


def labels_of(metric: str) -> set[str] | None:
    """The labels of a metric of ingestd, its client library or Prometheus; None for an unknown metric."""
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
    """The possible values of a label; None without a list of them."""
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


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(prometheus: PrometheusServer) -> None:
    tested: dict[str, str] = {}
    for file in TESTS:
        groups = re.split(r"^  - name: (\w+)$", file.read_text(), flags=re.MULTILINE)[1:]
        tested |= dict(zip(groups[::2], groups[1::2], strict=True))
    alerts = {rule["name"] for rule in prometheus.rules("alerting")}
    assert {*tested} - {"recorded"} == alerts
    for alert in alerts - {WATCHDOG}:
        moments = tested[alert].split("- expr:")[1:]
        assert any(f'alertname="{alert}"' in moment for moment in moments), alert
        assert any(f'alertname="{alert}"' not in moment for moment in moments), alert


def test_rules_and_dashboard_use_only_existing_metrics_and_labels(
    expressions: dict[str, str], recorded: set[str]
) -> None:
    own = {label for metric in documented().values() for label in metric.labels} | {"law"}
    for name, expression in expressions.items():
        asked = [*selectors(expression)]
        assert asked or expression == "vector(1)", name
        for selector in asked:
            known = own if selector.metric in recorded else labels_of(selector.metric)
            assert known is not None, f"{name}: there is no metric {selector.metric}"
            for label, pattern in selector.matches:
                assert label in known | TARGET, f"{name}: {selector.metric} has no {label}"
                values = values_of(selector, label) if selector.metric not in recorded or label == "outcome" else None
                assert values is None or {*pattern.split("|")} <= values, f"{name}: {label} is never {pattern}"
        assert {*grouped(expression)} <= own | TARGET | {"le"}, name


def test_misspelt_metrics_and_labels_would_be_found() -> None:
    wrong = 'sum without (sink) (rate(ingestd_sink_delivred_total{sink="a"}[5m])) > on (job) up and ingestd_store_up'
    assert [*selectors(wrong)] == [
        Selector("ingestd_sink_delivred_total", (("sink", "a"),)), Selector("up", ()), Selector("ingestd_store_up", ()),
    ]  # fmt: skip
    assert grouped(wrong) == ["sink", "job"]
    assert labels_of("ingestd_sink_delivred_total") is None
    assert labels_of("ingestd_http_request_duration_seconds") is None
    assert labels_of("ingestd_http_request_duration_seconds_bucket") == {"endpoint", "le"}


def test_every_recorded_series_is_used(expressions: dict[str, str], recorded: set[str]) -> None:
    used = {selector.metric for expression in expressions.values() for selector in selectors(expression)}
    assert recorded - used == set()


def test_every_alert_has_a_severity_a_description_and_a_runbook(prometheus: PrometheusServer) -> None:
    for alert in prometheus.rules("alerting"):
        assert {"severity"} <= alert["labels"].keys() <= {"severity", "sink"}, alert["name"]
        severities = {"none"} if alert["name"] == WATCHDOG else {"critical", "warning"}
        assert alert["labels"]["severity"] in severities, alert["name"]
        notes = alert["annotations"]
        assert notes.keys() == {"summary", "description", "runbook"}, alert["name"]
        assert notes["runbook"] == f"docs/monitoring.md#{alert['name'].lower()}"
        assert notes["description"].endswith("."), alert["name"]


def test_panels_of_the_dashboard_are_unique_do_not_overlap_and_have_descriptions() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid: dict[str, int] = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(grid["x"], grid["x"] + grid["w"])
            for line in range(grid["y"], grid["y"] + grid["h"])
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


def test_every_variable_of_the_dashboard_exists_and_is_used() -> None:
    text = json.dumps(DASHBOARD["panels"])
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert {name for pair in re.findall(r"\$\{(\w+)\}|\$(\w+)", text) for name in pair if name} == variables
