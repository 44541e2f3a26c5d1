"""Redis fails under load: callers get an answer in time, no event is lost or stored twice, and the daemon recovers."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import BASE, Daemon
from tests.support.redis_server import RedisServer
from tests.support.redis_shop import RedisShop, redis_shop

TIMEOUT, PATIENCE = 0.5, 1.0
BOUND = TIMEOUT + PATIENCE + 1.0
QUICK = {"plugins.redis": f'timeout = "{TIMEOUT * 1000:.0f}ms"\npatience = "{PATIENCE * 1000:.0f}ms"'}
UNAVAILABLE = 'ingestd_events_total{endpoint="track",key="Page View",outcome="unavailable"}'


@dataclass
class Answer:
    message: str
    status: int
    seconds: float
    retry_after: str | None
    body: dict[str, Any]


class Insisting:
    """Threads that repeat each message until it is answered 200. They share five visitors."""

    def __init__(self, daemon: Daemon, key: str, *, threads: int = 6) -> None:
        self.answers: list[Answer] = []
        self._port = daemon.port
        self._headers = {"Authorization": f"Bearer {key}"}
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Insisting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the threads after the last message of each has been answered 200."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def count(self, status: int) -> int:
        return sum(answer.status == status for answer in [*self.answers])

    def more(self, status: int, count: int) -> None:
        """Waits for `count` more answers with this status."""
        before = self.count(status)
        wait_until(lambda: self.count(status) >= before + count)

    def _run(self, thread: int) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            while self._send(f"{thread}-{number}", f"visitor-{number % 5}") != 200:
                time.sleep(0.02)

    def _send(self, message: str, visitor: str) -> int | None:
        """Sends the message and returns the status, or None if there was no answer."""
        status = None
        body = {"key": "Page View", "anonymousId": visitor, "messageId": message, "data": {"number": message}}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        begun = time.monotonic()
        with suppress(OSError):  # the daemon has stopped listening
            connection.request("POST", f"{BASE}/track", json.dumps(body), self._headers)
            reply = connection.getresponse()
            read = json.loads(reply.read())
            took, status = time.monotonic() - begun, reply.status
            self.answers.append(Answer(message, status, took, reply.getheader("Retry-After"), read))
        connection.close()
        return status


@contextmanager
def killed(redis: RedisServer) -> Iterator[None]:
    redis.kill()
    yield
    redis.start()


@contextmanager
def stopped(redis: RedisServer) -> Iterator[None]:
    redis.signal(signal.SIGSTOP)
    yield
    redis.signal(signal.SIGCONT)


Fault = Callable[[RedisServer], AbstractContextManager[None]]

FAULTS: dict[Fault, str] = {killed: "Connect call failed", stopped: "Redis does not answer"}


def is_ready(daemon: Daemon) -> bool:
    return daemon.ops("/readyz").status == 200


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_redis_fails_under_load(fault: Fault, tmp_path: Path) -> None:
    with redis_shop(tmp_path, QUICK) as shop:
        with shop.serve() as daemon:
            with Insisting(daemon, shop.public.id) as load:
                for _ in range(2):
                    load.more(200, 50)
                    with fault(shop.redis):
                        load.more(503, 30)
                        ready = daemon.ops("/readyz")
                        assert ready.status == 503
                        assert FAULTS[fault] in ready.body.decode()
                        assert daemon.ops("/livez").status == 200
                        # Wrong requests are still answered with their faults.
                        assert daemon.post("/track", {"key": "Page View"}, shop.public.id).status == 400
                        assert daemon.post("/track", {}, "wrong").status == 401
                    wait_until(lambda: is_ready(daemon))
                load.more(200, 50)
            # The sink recovers soon, although it retried while Redis was away.
            wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="archive"}') == 0, 5)
            assert daemon.metric(UNAVAILABLE) == load.count(503)
        check(load.answers, shop)
        daemon_log = "\n".join(daemon.log)
        assert daemon_log.count("events cannot be stored: ") == daemon_log.count("events can be stored again") == 2


def check(answers: list[Answer], shop: RedisShop) -> None:
    """Checks the answers and the stored records."""
    assert {answer.status for answer in answers} == {200, 503}
    assert max(answer.seconds for answer in answers) < BOUND
    refused = [answer for answer in answers if answer.status == 503]
    assert {answer.body["code"] for answer in refused} == {"unavailable"}
    assert {answer.retry_after for answer in refused} == {"1"}
    told = json.dumps([answer.body for answer in refused])
    assert str(shop.redis.port) not in told, "an answer contains the address of Redis"

    journal = shop.exported()
    assert max(Counter(record["messageId"] for record in journal).values()) == 1
    stored = {record["messageId"]: record for record in journal}
    accepted = [answer for answer in answers if answer.status == 200]
    assert {answer.message for answer in accepted} == stored.keys(), "each message is repeated until it is answered"
    for answer in accepted:
        record = stored[answer.message]
        assert answer.body["session"] == {"sessionId": record["sessionId"], "isNew": record["sessionIsNew"]}
    for visitor in range(5):
        of_one = [record for record in journal if record["anonymousId"] == f"visitor-{visitor}"]
        assert len({record["sessionId"] for record in of_one}) == 1
    assert {record["id"]: record for record in shop.archived()} == {record["id"]: record for record in journal}


def test_a_daemon_without_requests_notices_the_failure_too(tmp_path: Path) -> None:
    with redis_shop(tmp_path, QUICK) as shop, shop.serve() as daemon:
        assert is_ready(daemon)
        with killed(shop.redis):
            wait_until(lambda: not is_ready(daemon))
        wait_until(lambda: is_ready(daemon))
        reply = daemon.post("/track", {"key": "Page View", "anonymousId": "a", "data": {}}, shop.public.id)
        assert reply.status == 200
