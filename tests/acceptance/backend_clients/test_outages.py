"""The promise of the clients: each event is stored once, and one that is refused is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ingestd.support.ids import named_uuid
from ingestd.support.unusable_ids import UNUSABLE
from tests.support.backend import COMMANDS, FLUSH, PATIENCE, WITHOUT_EXTENSIONS, Backend, Call, view
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop

ROOT = Path(__file__).parents[3]
EVENTS = 4_000, 16_000, 64_000
"""So many that each of the kills finds some waiting. A machine that stands still for a moment needs more."""
KILLS = 5
NOBODY = [*UNUSABLE, "", " \u2003\xa0Guest\x1f\u200b", "\"'`Anonymous'"]


def test_the_client_for_python_needs_the_standard_library_alone() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import ingestd.client"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=PATIENCE)


class TooLateError(Exception):
    """All was stored before the last kill: the test itself did not run for a while."""


def test_each_event_is_stored_once_while_daemon_and_client_are_killed(language: str, tmp_path: Path) -> None:
    for events in EVENTS:
        folder = tmp_path / str(events)
        folder.mkdir()
        with suppress(TooLateError):
            kill_and_count(Backend(Shop(folder), COMMANDS[language]), events)
            return
    raise AssertionError("each time the last kill was too late to lose an answer")


def kill_and_count(backend: Backend, events: int) -> None:
    calls = [view(number) for number in range(events)]
    shop, count = backend.shop, 0
    with backend.daemon() as daemon, backend.program(calls) as first:
        wait_until(lambda: len(backend.results()) > events // 5, PATIENCE)
        first.kill()
        first.wait()
        daemon.kill()
    last = len(backend.results()) - 1
    with backend.program([*calls[last + 2 :], ["flush", 100]]) as second:
        for _ in range(KILLS - 1):
            if shop.count() >= events - 2:
                raise TooLateError
            with backend.daemon() as daemon:
                deadline = time.monotonic() + PATIENCE
                while shop.count() == count:  # a kill comes soon, else there would be nothing left to lose
                    assert time.monotonic() < deadline, f"{count} are stored: {backend.errors()}"
                    time.sleep(0.002)
                daemon.kill()
            count = shop.count()
        if count >= events - 2:
            raise TooLateError
        with backend.daemon() as daemon:
            assert second.wait(PATIENCE) == 0
            assert backend.results()[-1] is True, backend.errors()
            assert daemon.terminate() == 0
    records = shop.stored()
    numbers = Counter(record["data"]["number"] for record in records)
    assert {*numbers} >= {*range(events)} - {last + 1}  # the first client was killed before it had told of that one
    assert {*numbers.values()} == {1}
    assert len({record["messageId"] for record in records}) == len(numbers)
    assert backend.waiting() == 0


def test_a_refused_event_is_told_and_stops_no_other(backend: Backend) -> None:
    wrong = ["track", "Product Viewed", {"price": "1,50"}, {"anonymousId": "v", "messageId": "m-wrong"}]
    large = ["track", "Page View", {"text": "x" * 1_100_000}, {"anonymousId": "v", "messageId": "m-large"}]
    with backend.daemon() as daemon:
        shown = backend.run([view(1), wrong, view(2), large, view(3), FLUSH])
        assert daemon.terminate() == 0
    assert {record["data"]["number"] for record in backend.shop.stored()} == {1, 2, 3}
    assert {(each["refused"], each["code"]) for each in shown if isinstance(each, dict)} == {
        ("m-wrong", "invalid_data"), ("m-large", "too_large"),
    }  # fmt: skip
    assert shown.count(True) == 1
    assert backend.waiting() == 0


class Firewall(BaseHTTPRequestHandler):
    """Refuses requests with a word, and passes others on."""

    daemon: Daemon

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, content = 403, b"<html>no</html>"
        if b"attack" not in body:
            headers = {name: self.headers[name] for name in ("Authorization", "x-signature")}
            answer = self.daemon.request("POST", self.path, body, headers)
            status, content = answer.status, answer.body
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests show no line of it."""


def test_an_event_that_a_firewall_refuses_stops_no_other(backend: Backend) -> None:
    calls = [["track", "Page View", {"number": "attack" if n == 7 else n}, {}] for n in range(120)]
    with backend.shop.serve() as daemon:
        Firewall.daemon = daemon
        with ThreadingHTTPServer(("127.0.0.1", 0), Firewall) as firewall:
            backend.host = f"http://127.0.0.1:{firewall.server_port}"
            thread = Thread(target=firewall.serve_forever)
            thread.start()
            try:
                assert backend.run([*calls, ["flush", 2]])[-1] is False
            finally:
                firewall.shutdown()
                thread.join()
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [*range(7), *range(8, 120)]
    assert backend.waiting() == 1


def test_processes_that_share_a_folder_send_each_event_once(backend: Backend) -> None:
    calls = [[view(100 * process + number) for number in range(100)] for process in range(3)]
    with backend.daemon() as daemon:
        with ExitStack() as stack:
            programs = [stack.enter_context(backend.program([*each, FLUSH])) for each in calls]
            assert [program.wait(PATIENCE) for program in programs] == [0, 0, 0], backend.errors()
        duplicate = 'ingestd_events_total{endpoint="customer-events",key="Page View",outcome="duplicate"}'
        assert daemon.metric(duplicate) == 0
        assert daemon.terminate() == 0
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [*range(300)]


FORKING = """
import asyncio, os, sys
from ingestd.client import AsyncClient, Client
options = {"folder": sys.argv[4], "interval": 0.01}
client = Client(*sys.argv[1:4], "shop", **options)
client.track("Page View", {"number": 0}, user_id=1)
if not (child := os.fork()):
    client.track("Page View", {"number": 1}, user_id=1)
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
async def main():
    client = AsyncClient(*sys.argv[1:4], "shop", **options)
    await asyncio.gather(*(client.track("Page View", {"number": number}, user_id=1) for number in range(2, 10)))
    assert await client.flush()
    await client.close()
asyncio.run(main())
"""


def test_python_sends_from_a_forked_process_and_from_asyncio(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        host, key = f"http://{daemon.host}:{daemon.port}", shop.server
        command = [sys.executable, "-c", FORKING, host, key.id, key.secret, str(tmp_path / "queue")]
        subprocess.run(command, check=True, timeout=PATIENCE)
    assert sorted(record["data"]["number"] for record in shop.stored()) == [*range(10)]


@pytest.mark.skipif(shutil.which("php") is None, reason="php is not on PATH")
def test_php_sends_without_extensions(tmp_path: Path) -> None:
    backend = Backend(Shop(tmp_path), WITHOUT_EXTENSIONS)
    wrong = ["track", "Product Viewed", {"price": "1,50"}, {"anonymousId": "v", "messageId": "m-wrong"}]
    with backend.daemon() as daemon:
        _, _, refused, sent = backend.run([view(1), wrong, FLUSH])
        assert (refused["code"], sent) == ("invalid_data", True)
        assert daemon.terminate() == 0
    assert [record["data"]["number"] for record in backend.shop.stored()] == [1]


def test_a_refused_key_keeps_the_events_for_the_right_one(backend: Backend) -> None:
    with backend.daemon() as daemon:
        assert backend.run([view(1), FLUSH], secret="wrong")[1:] == [{"error": "KeyRefused"}]
        assert "401 invalid_signature" in backend.errors()
        assert backend.run([view(2), FLUSH])[1:] == [True]
        assert daemon.terminate() == 0
    assert [record["data"]["number"] for record in backend.shop.stored()] == [1, 2]


def test_the_caller_hears_of_a_full_queue(backend: Backend) -> None:
    shown = backend.run([view(number) for number in range(5)], most=3)
    assert shown[3:] == [{"error": "QueueFull"}] * 2
    with backend.daemon() as daemon:
        assert len(backend.run([FLUSH, view(5)], most=3)) == 2  # sent at the end of the process
        assert daemon.terminate() == 0
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [0, 1, 2, 5]


def test_a_pause_that_the_daemon_asks_for_is_kept(backend: Backend) -> None:
    table = backend.shop.tables
    table["plugins.rate_limit"] = 'per_key = "100/s"'
    backend.shop.__post_init__()
    with backend.daemon() as daemon:
        assert backend.run([*map(view, range(250)), FLUSH])[-1] is True
        limited = daemon.metric('ingestd_events_total{endpoint="customer-events",key="",outcome="limited"}')
        assert limited <= 400, "it asked again too soon"
        assert daemon.terminate() == 0
    assert len(backend.shop.stored()) == 250


def test_the_visitor_is_given_or_derived_or_new(backend: Backend) -> None:
    at = "2026-11-21T10:31:59.9Z"
    calls: list[Call] = [
        ["track", "Page View", {}, {"anonymousId": "v-1", "userId": "u-1", "timestamp": at, "messageId": "m-1"}],
        ["track", "Page View", {}, {"userId": "ü😀" * 70}],
        ["identify", 17, {"plan": "gold"}, {}],
        *(["track", "Page View", {}, {"userId": user}] for user in [*NOBODY, None]),
        FLUSH,
    ]
    with backend.daemon() as daemon:
        message, *_, sent = backend.run(calls)
        assert (message, sent) == ("m-1", True)
        assert daemon.terminate() == 0
    given, derived, identified, *new = backend.shop.stored()
    assert (given["anonymousId"], given["userId"], given["timestamp"]) == ("v-1", "u-1", "2026-11-21T10:31:59.900Z")
    assert given["signed"]
    assert derived["anonymousId"] == named_uuid("visitor of user", "shop", "ü😀" * 70)
    assert (identified["anonymousId"], identified["userId"]) == (named_uuid("visitor of user", "shop", "17"), "17")
    assert (identified["traits"], identified["linked"]) == ({"plan": "gold"}, True)
    assert len({record["anonymousId"] for record in new}) == len(NOBODY) + 1
    assert (new[-1]["userId"], {record["sessionIsNew"] for record in new}) == (None, {True})
