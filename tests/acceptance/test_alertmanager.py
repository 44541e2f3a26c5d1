"""A real Alertmanager with the example of conf/prometheus: one notification for one cause, to the right receiver."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.ports import free_port
from tests.support.prometheus_server import CONF

DAEMON = {"job": "ingestd", "instance": "a"}


@contextmanager
def receivers() -> Iterator[tuple[str, queue.Queue[tuple[str, str]]]]:
    """The URL of all receivers, and what they get."""
    notified: queue.Queue[tuple[str, str]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in told["alerts"]:
                notified.put((self.path, alert["labels"]["alertname"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Tests write no access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", notified
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def alertmanager(folder: Path, receiver: str) -> Iterator[str]:
    """The URL of an Alertmanager with the shipped example, which groups for a fraction of a second."""
    text = (CONF / "alertmanager.yml").read_text()
    assert text.count("http://127.0.0.1:9099") == 3
    text = text.replace("http://127.0.0.1:9099", receiver).replace("group_wait: 30s", "group_wait: 500ms")
    (folder / "alertmanager.yml").write_text(text)
    url = f"http://127.0.0.1:{free_port()}"
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [
                "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder}", f"--web.listen-address={url.removeprefix('http://')}",
                "--cluster.listen-address=",
            ],
            stdout=written, stderr=written,
        )  # fmt: skip

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(is_ready)
        yield url
    finally:
        process.kill()
        process.wait(20)


def severity_of(name: str) -> str:
    """The severity in the shipped rules."""
    rule = (CONF / "ingestd.alerts.yml").read_text().partition(f"- alert: {name}\n")[2]
    return rule.partition("severity: ")[2].split()[0]


def fire(url: str, *alerts: tuple[str, dict[str, str]]) -> None:
    body = [{"labels": {"alertname": name, "severity": severity_of(name), **labels}} for name, labels in alerts]
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        pytest.param(
            [
                ("IngestdCallersRefused", {**DAEMON, "endpoint": "customer-events"}),
                ("IngestdRejected", DAEMON),
                ("IngestdOrdersStopped", {"job": "ingestd", "key": "Order Completed"}),
                ("IngestdWatchdog", {}),
            ],
            {("/night", "IngestdCallersRefused"), ("/watchdog", "IngestdWatchdog")},
            id="a key is refused",
        ),
        pytest.param(
            [
                ("IngestdNotReady", DAEMON),
                ("IngestdErrors", DAEMON),
                ("IngestdCommitsFailing", {**DAEMON, "file": "ingestd.db"}),
                ("IngestdSinkStuck", {**DAEMON, "sink": "crm"}),
                ("IngestdLimited", {**DAEMON, "instance": "b"}),
                ("IngestdErrors", {**DAEMON, "instance": "b"}),
            ],
            {("/night", "IngestdNotReady"), ("/night", "IngestdErrors"), ("/work", "IngestdLimited")},
            id="a store takes nothing, and another daemon has other troubles",
        ),
        pytest.param(
            [
                ("IngestdSinkStuck", {**DAEMON, "sink": "crm"}),
                ("IngestdConsumerBehind", {**DAEMON, "consumer": "sink:crm", "sink": "crm"}),
                ("IngestdConsumerBehind", {**DAEMON, "consumer": "attribution", "sink": "-"}),
                ("IngestdDeadLetters", {**DAEMON, "sink": "crm"}),
                ("IngestdSinkPaused", {**DAEMON, "sink": "lake"}),
            ],
            {("/night", "IngestdSinkStuck"), ("/work", "IngestdConsumerBehind"), ("/work", "IngestdSinkPaused")},
            id="one sink stands",
        ),
    ],
)  # fmt: skip
def test_one_cause_notifies_once(
    alerts: list[tuple[str, dict[str, str]]], expected: set[tuple[str, str]], tmp_path: Path
) -> None:
    with receivers() as (receiver, notified), alertmanager(tmp_path, receiver) as url:
        fire(url, *alerts)
        got = [notified.get(timeout=20) for _ in expected]
        with pytest.raises(queue.Empty):
            notified.get(timeout=1)
    assert {*got} == expected
    assert len(got) == len(expected)
