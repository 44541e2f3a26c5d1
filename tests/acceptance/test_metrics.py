"""The metrics of a running daemon: documented, correct, cheap, and also served during failures."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import sqlite3
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.clients import at_once, wait_until
from tests.support.daemon import BASE, Daemon, Shop
from tests.support.redis_shop import redis_shop
from tests.support.scrape import documented, documented_labels, lint, parse, tables

EVENT = {"key": "Product Viewed", "anonymousId": "visitor", "data": {}}
PLUGINS = [point.name for point in entry_points(group="ingestd") if point.dist and point.dist.name == "ingestd"]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Daemon]]:
    """A daemon with all built-in plugins after requests of all kinds."""
    enabled = ", ".join(f'"{name}"' for name in dict.fromkeys(PLUGINS))
    shop = Shop(tmp_path_factory.mktemp("busy"), {"plugins": f"enabled = [{enabled}]"})
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        assert daemon.post("/track", EVENT, "wrong").status == 401
        assert daemon.post("/track", b"no JSON", shop.public.id).status == 400
        assert daemon.post_signed(EVENT, shop.server).status == 200
        assert daemon.post("/identify/public", {"anonymousId": "visitor"}, shop.public.id).status == 200
        yield shop, daemon


def outcomes(daemon: Daemon) -> dict[tuple[str, str, str], float]:
    """The samples of ingestd_events_total that have counted anything."""
    shown = daemon.ops("/metrics").body.decode()
    sample = r'^ingestd_events_total\{endpoint="(.*?)",key="(.*?)",outcome="(.*?)"\} (.*)$'
    return {(m[1], m[2], m[3]): float(m[4]) for m in re.finditer(sample, shown, re.MULTILINE)}


def shown(daemon: Daemon) -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of the daemon's own metrics, by name."""
    return {
        name: (family.type, frozenset(label for sample in family.samples for label in sample.labels) - {"le"})
        for name, family in parse(daemon.ops("/metrics").body).items()
        if name.startswith("ingestd_")
    }


def test_every_metric_is_documented_with_type_and_labels_and_every_documented_one_is_shown(
    busy: tuple[Shop, Daemon], tmp_path: Path
) -> None:
    on_sqlite = shown(busy[1])
    with redis_shop(tmp_path) as shop, shop.serve() as daemon:
        on_redis = shown(daemon)
        assert lint(daemon.ops("/metrics").body) == ""
    assert not any(name.startswith("ingestd_redis_") for name in on_sqlite)
    assert not any(name.startswith("ingestd_sqlite_") for name in on_redis)
    assert on_sqlite.keys() ^ on_redis.keys() == {
        name for name in documented() if name.startswith(("ingestd_redis_", "ingestd_sqlite_"))
    }
    assert {**on_redis, **on_sqlite} == {name: (metric.type, metric.labels) for name, metric in documented().items()}


def test_labels_have_documented_values_only(busy: tuple[Shop, Daemon]) -> None:
    closed = {
        "endpoint": documented_labels()["endpoint"],
        "outcome": {row[0].strip("`") for row in tables()["outcome"]},
        "sink": {"archive"},
        "file": {str(busy[0].database)},
    }
    for name, family in parse(busy[1].ops("/metrics").body).items():
        for sample in family.samples:
            for label, value in sample.labels.items():
                if name == "ingestd_refusals_total" and label in {"pointer", "reason"}:
                    continue  # open lists, covered by the test of refusals below
                if label in {"reason", "result", "by", "field"}:
                    assert value in documented()[name].values, name
                elif label in closed:
                    assert value in closed[label], name


def test_every_value_of_a_short_closed_list_is_shown_from_the_start(shop: Shop, daemon: Daemon) -> None:
    families = parse(daemon.ops("/metrics").body)
    for name, label in [
        ("ingestd_http_refused_total", "reason"),
        ("ingestd_timestamps_ignored_total", "reason"),
        ("ingestd_unusable_ids_total", "field"),
        ("ingestd_sqlite_commits_total", "result"),
        ("ingestd_rate_limit_refused_total", "by"),
    ]:
        assert {sample.labels[label] for sample in families[name].samples} == documented()[name].values


def test_process_metrics_are_shown(daemon: Daemon) -> None:
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert daemon.metric(name) > 0
    text = daemon.ops("/metrics").body.decode()
    assert re.search(r'^ingestd_build_info\{python="3\.\d+\.\d+",version=".+"\} 1\.0$', text, re.MULTILINE)


def test_promtool_finds_nothing_wrong(busy: tuple[Shop, Daemon]) -> None:
    assert lint(busy[1].ops("/metrics").body) == ""


def test_promtool_would_find_something_wrong() -> None:
    assert "no help text" in lint(b"# TYPE ingestd_x gauge\ningestd_x 1\n")


def test_there_are_no_created_timestamps(busy: tuple[Shop, Daemon]) -> None:
    assert b"_created" not in busy[1].ops("/metrics").body


@pytest.mark.parametrize("accept", [None, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"])
def test_the_format_is_the_text_format_for_every_scraper(accept: str | None, daemon: Daemon) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = daemon.request("GET", "/metrics", headers=headers, port=daemon.ops_port)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_scraper_that_accepts_gzip_gets_gzip(busy: tuple[Shop, Daemon]) -> None:
    _, daemon = busy
    plain = daemon.ops("/metrics")
    packed = daemon.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"}, port=daemon.ops_port)
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 4
    assert {*parse(gzip.decompress(packed.body))} == {*parse(plain.body)}


def test_simultaneous_scrapes_all_get_current_values(shop: Shop, daemon: Daemon) -> None:
    sample = 'ingestd_events_total{endpoint="track",key="Cart Viewed",outcome="accepted"}'
    for count in (1, 2, 3):
        assert daemon.post("/track", {**EVENT, "key": "Cart Viewed"}, shop.public.id).status == 200
        answers = at_once([lambda: daemon.ops("/metrics")] * 12)
        assert [answer.status for answer in answers] == [200] * 12
        assert all(f"{sample} {count}.0\n".encode() in answer.body for answer in answers)


def test_a_scraper_that_disconnects_disturbs_nobody(daemon: Daemon) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", daemon.ops_port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert daemon.ops("/metrics").status == 200
    daemon.read_log()
    assert not [line for line in daemon.log if "WARNING" in line or "ERROR" in line]


def test_probes_and_scrapes_count_as_nothing(daemon: Daemon) -> None:
    def http_metrics() -> list[bytes]:
        shown = daemon.ops("/metrics").body.splitlines()
        return [line for line in shown if line.startswith((b"ingestd_http", b"ingestd_events", b"ingestd_ident"))]

    before = http_metrics()
    for path in ("/livez", "/readyz", "/metrics", "/nowhere"):
        daemon.ops(path)
    assert http_metrics() == before


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
    # No text from a caller is ever shown.
    assert b"visitor" not in daemon.ops("/metrics").body.replace(b'reason="max_visitors"', b"")


def refusals(daemon: Daemon) -> dict[tuple[str, str, str, str], float]:
    """The samples of ingestd_refusals_total."""
    family = parse(daemon.ops("/metrics").body)["ingestd_refusals_total"]
    labels = [(each.labels, each.value) for each in family.samples]
    return {(of["endpoint"], of["key"], of["pointer"], of["reason"]): value for of, value in labels}


def test_each_refusal_counts_by_its_place_in_the_schema_and_its_reason(shop: Shop, daemon: Daemon) -> None:
    before, key, order = refusals(daemon), shop.public.id, "Order Completed"
    wrong = {"key": order, "anonymousId": "visitor", "data": {"products": [{"price": "visitor"}], "total": "visitor"}}
    bad_type = {**EVENT, "type": "visitor"}
    bad_identify = {"type": "identify", "anonymousId": 5}
    for answer in [
        daemon.post("/track", wrong, key),
        daemon.post_signed({"key": order, "anonymousId": "visitor"}, shop.server),
        daemon.post("/track", {**EVENT, "key": "visitor"}, key),
        daemon.post("/track", b"visitor", key),
        daemon.post("/track", EVENT, "visitor"),
        daemon.post("/track", b"visitor" * 400_000, key),
        daemon.post("/customer-events", EVENT, shop.server.id),
        daemon.post("/identify/public", {"anonymousId": "v", "traits": {"visitor": 1}, "userId": 7}, key),
        daemon.post("/batch", {"events": {}}, key),
        daemon.post("/batch", {"events": [EVENT, wrong, wrong, bad_type, bad_identify, {"key": EVENT["key"]}]}, key),
        daemon.post("/batch", {"events": [EVENT, EVENT]}, "visitor"),
    ]:
        assert answer.status in {200, 400, 401, 404, 413}
    product = EVENT["key"]
    counted = {name: value - before.get(name, 0) for name, value in refusals(daemon).items()}
    assert {name: value for name, value in counted.items() if value} == {
        ("track", order, "/data/products/*/price", "type"): 3,
        ("customer-events", order, "/data", "required"): 1,
        ("track", "", "", "unknown_key"): 1,
        ("track", "", "", "invalid_json"): 1,
        ("track", "", "", "invalid_key"): 2,
        ("track", "", "", "too_large"): 1,
        ("customer-events", "", "", "invalid_signature"): 1,
        ("identify", "", "/userId", "type"): 1,
        ("track", "", "/events", "type"): 1,
        ("track", "", "/type", "enum"): 1,
        ("identify", "", "/anonymousId", "type"): 1,
        ("track", product, "/data", "required"): 1,
    }
    families = parse(daemon.ops("/metrics").body)
    answered = {"accepted", "duplicate", "dropped"}
    outcomes = [*families["ingestd_events_total"].samples, *families["ingestd_identifies_total"].samples]
    refused = sum(each.value for each in outcomes if each.labels["outcome"] not in answered)
    assert sum(refusals(daemon).values()) == refused
    assert b"visitor" not in daemon.ops("/metrics").body.replace(b'reason="max_visitors"', b"")


def test_connections_of_callers_are_shown(daemon: Daemon) -> None:
    before = daemon.metric("ingestd_http_connections")
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
    connection.connect()
    wait_until(lambda: daemon.metric("ingestd_http_connections") == before + 1)
    connection.send(f"POST {BASE}/track HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\nbegun".encode())
    wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") > 0)
    connection.close()
    wait_until(lambda: daemon.metric("ingestd_http_connections") == before)
    wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") == 0)


def test_the_delay_of_the_loop_is_measured_all_the_time(daemon: Daemon) -> None:
    before = daemon.metric("ingestd_loop_delay_seconds_count")
    wait_until(lambda: daemon.metric("ingestd_loop_delay_seconds_count") >= before + 3)
    assert daemon.metric("ingestd_loop_delay_seconds_sum") >= 0


def test_commits_and_the_cache_are_shown(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    file = f'file="{shop.database}"'
    stored = f'ingestd_sqlite_commits_total{{{file},result="stored"}}'
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        wait_until(lambda: daemon.metric(f"ingestd_sqlite_filter_bytes{{{file}}}") > 1_000_000)
        commits, missed = daemon.metric(stored), daemon.metric(f"ingestd_sqlite_cache_misses_total{{{file}}}")
        found = daemon.metric(f"ingestd_sqlite_cache_hits_total{{{file}}}")
        assert commits >= 1
        # The visitor was unknown.
        assert missed + daemon.metric(f"ingestd_sqlite_cache_ruled_out_total{{{file}}}") >= 1
        assert daemon.metric(f"ingestd_sqlite_cache_entries{{{file}}}") >= 1
        for _ in range(5):
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
        assert daemon.metric(f"ingestd_sqlite_cache_misses_total{{{file}}}") == missed
        assert daemon.metric(f"ingestd_sqlite_cache_hits_total{{{file}}}") >= found + 5
        ruled_out = daemon.metric(f"ingestd_sqlite_cache_ruled_out_total{{{file}}}")
        assert daemon.post("/track", {**EVENT, "anonymousId": "nobody so far"}, shop.public.id).status == 200
        assert daemon.metric(f"ingestd_sqlite_cache_ruled_out_total{{{file}}}") > ruled_out
        assert daemon.metric(f"ingestd_sqlite_cache_misses_total{{{file}}}") == missed
        families = parse(daemon.ops("/metrics").body)
        values = {
            (sample.name, sample.labels.get("le")): sample.value
            for name in ("ingestd_sqlite_commit_duration_seconds", "ingestd_sqlite_commit_units")
            for sample in families[name].samples
        }
        count = values["ingestd_sqlite_commit_duration_seconds_count", None]
        assert count == values["ingestd_sqlite_commit_units_count", None] >= commits + 5
        assert count == values["ingestd_sqlite_commit_duration_seconds_bucket", "+Inf"]
        assert values["ingestd_sqlite_commit_units_sum", None] >= count
        assert values["ingestd_sqlite_commit_duration_seconds_sum", None] > 0
        assert daemon.metric(f"ingestd_sqlite_file_bytes{{{file}}}") == shop.database.stat().st_size
        assert daemon.metric(f"ingestd_sqlite_wal_bytes{{{file}}}") > 0


def test_a_separate_journal_has_separate_metrics(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'url = "sqlite:journal.db"'})
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        for name in ("ingestd.db", "journal.db"):
            assert daemon.metric(f'ingestd_sqlite_file_bytes{{file="{tmp_path / name}"}}') > 0
            assert daemon.metric(f'ingestd_sqlite_disk_free_bytes{{file="{tmp_path / name}"}}') > 0


def test_metrics_are_there_while_nothing_can_be_stored(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        assert daemon.metric("ingestd_store_up") == 1
        blocker = sqlite3.connect(shop.database, isolation_level=None)
        wait_until(lambda: _locks(blocker))
        try:
            assert daemon.post("/track", EVENT, shop.public.id).status == 503
            assert daemon.ops("/readyz").status == 503
            assert daemon.metric("ingestd_store_up") == 0
            assert daemon.metric(f'ingestd_sqlite_commits_total{{file="{shop.database}",result="failed"}}') >= 1
            assert outcomes(daemon) == {("track", "Product Viewed", "unavailable"): 1}
        finally:
            blocker.close()
        wait_until(lambda: daemon.metric("ingestd_store_up") == 1)
        assert daemon.ops("/readyz").status == 200


def _locks(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:  # the daemon was writing at that moment
        return False
    return True


def test_a_sink_that_has_delivered_all_records_has_nothing_pending(shop: Shop, daemon: Daemon) -> None:
    for _ in range(20):
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
    count = len(shop.exported())
    wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == count)
    assert daemon.metric('ingestd_sink_pending{sink="archive"}') == 0
    assert daemon.metric('ingestd_sink_oldest_pending_seconds{sink="archive"}') == 0
    assert daemon.metric('ingestd_sink_retries_total{sink="archive"}') == 0
    assert daemon.metric('ingestd_consumer_pending{consumer="sink:archive"}') == 0
    assert daemon.metric('ingestd_consumer_oldest_pending_seconds{consumer="sink:archive"}') == 0
    assert len(shop.archived()) == count


def test_a_sink_that_cannot_write_shows_its_pending_records_and_recovers(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.archive.mkdir()  # a folder in the file's place
    with shop.serve() as daemon:
        for _ in range(3):
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
        wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="archive"}') >= 2)
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="archive"}') == 3)
        assert daemon.metric('ingestd_consumer_pending{consumer="sink:archive"}') == 3
        assert daemon.metric('ingestd_consumer_failures_total{consumer="sink:archive"}') >= 2
        wait_until(lambda: daemon.metric('ingestd_sink_oldest_pending_seconds{sink="archive"}') > 0)
        wait_until(lambda: daemon.metric('ingestd_consumer_oldest_pending_seconds{consumer="sink:archive"}') > 0)
        assert daemon.ops("/readyz").status == 200
        shop.archive.rmdir()
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="archive"}') == 0)
        assert daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 3
    assert shop.archived() == shop.exported()
