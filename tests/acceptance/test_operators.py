"""What operators see: health, readiness and the documented metrics of a running daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
EVENT = {"key": "Product Viewed", "anonymousId": "visitor", "data": {}}


def outcomes(daemon: Daemon) -> dict[tuple[str, str, str], float]:
    """The samples of ingestd_events_total that have counted anything."""
    shown = daemon.ops("/metrics").body.decode()
    sample = r'^ingestd_events_total\{endpoint="(.*?)",key="(.*?)",outcome="(.*?)"\} (.*)$'
    return {(m[1], m[2], m[3]): float(m[4]) for m in re.finditer(sample, shown, re.MULTILINE)}


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_daemon_that_serves_is_live_and_ready(path: str, daemon: Daemon) -> None:
    answer = daemon.ops(path)
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_there_is_nothing_else_for_operators_and_nothing_of_theirs_in_public(daemon: Daemon) -> None:
    for path in ("/", "/metric", "/metrics/", "/api/v1/analytics/track"):
        assert daemon.ops(path).status == 404
    for path in ("/livez", "/readyz", "/metrics"):
        assert daemon.request("GET", path).status == 404


def test_every_documented_metric_is_shown_with_its_type(shop: Shop, daemon: Daemon) -> None:
    # Labelled families that have counted nothing yet are shown as well, by their type.
    assert daemon.post("/track", EVENT, shop.public.id).status == 200
    assert daemon.post("/identify/public", {"anonymousId": "visitor"}, shop.public.id).status == 200
    answer = daemon.ops("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    shown = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    documented = re.findall(r"^\| `(ingestd_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(documented) >= 9
    assert {name: shown.get(name) for name, _ in documented} == dict(documented)
    assert {name for name in shown if name.startswith("ingestd_") and not name.endswith("_created")} == {
        name for name, _ in documented
    }
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert daemon.metric(name) > 0
    assert re.search(r'^ingestd_build_info\{python="3\.\d+\.\d+",version=".+"\} 1\.0$', text, re.MULTILINE)


def test_each_request_counts_as_one_outcome(shop: Shop, daemon: Daemon) -> None:
    before = outcomes(daemon)
    posted = [
        daemon.post("/track", EVENT, shop.public.id),
        daemon.post("/track", {**EVENT, "messageId": "m"}, shop.public.id),
        daemon.post("/track", {**EVENT, "messageId": "m"}, shop.public.id),
        daemon.post("/track", {**EVENT, "data": {"price": "1"}}, shop.public.id),
        daemon.post("/track", b"no JSON", shop.public.id),
        daemon.post("/track", {**EVENT, "key": "visitor@shop.example"}, shop.public.id),
        daemon.post("/track", EVENT, "wrong"),
        daemon.post_signed(EVENT, shop.server),
        daemon.post("/customer-events", EVENT, shop.public.id),
        daemon.request("GET", "/api/v1/analytics/track"),
        daemon.request("POST", "/api/v1/analytics/elsewhere", b"{}"),
    ]
    assert [answer.status for answer in posted] == [200, 200, 200, 400, 400, 404, 401, 200, 403, 405, 404]
    key = "Product Viewed"
    counted = {name: value - before.get(name, 0) for name, value in outcomes(daemon).items()}
    assert {name: value for name, value in counted.items() if value} == {
        ("track", key, "accepted"): 2,
        ("track", key, "duplicate"): 1,
        ("track", key, "invalid"): 1,
        ("track", "", "invalid"): 1,
        ("track", "", "unknown_key"): 1,
        ("track", "", "unauthorized"): 1,
        ("customer-events", key, "accepted"): 1,
        ("customer-events", "", "forbidden"): 1,
    }
    # Nothing a caller chose is ever shown.
    assert b"visitor" not in daemon.ops("/metrics").body


def test_a_sink_has_nothing_pending_once_it_has_delivered_all(shop: Shop, daemon: Daemon) -> None:
    for _ in range(20):
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
    count = len(shop.exported())
    wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == count)
    assert daemon.metric('ingestd_sink_pending{sink="archive"}') == 0
    assert daemon.metric('ingestd_sink_oldest_pending_seconds{sink="archive"}') == 0
    assert daemon.metric('ingestd_sink_retries_total{sink="archive"}') == 0
    assert len(shop.archived()) == count


def test_a_sink_that_cannot_write_shows_what_waits_and_recovers(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.archive.mkdir()  # a folder in the file's place
    with shop.serve() as daemon:
        for _ in range(3):
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
        wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="archive"}') >= 2)
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="archive"}') == 3)
        assert daemon.metric('ingestd_sink_oldest_pending_seconds{sink="archive"}') > 0
        assert daemon.ops("/readyz").status == 200
        shop.archive.rmdir()
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="archive"}') == 0)
        assert daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 3
    assert shop.archived() == shop.exported()
