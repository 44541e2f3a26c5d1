"""Two daemons on Redis and on a cluster are upgraded one after the other, from the newest release to this version.

The former version runs from its tag in git, with the libraries of this environment.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from scripts.record_store import CONFIG, DECLARED, SERVERS, VISITORS, Receiver, order
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, run_ingestd
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the newest release."""
    tags = git("tag", "--list", "v*", "--sort=-version:refname").decode().split()
    if not tags:
        pytest.skip("this checkout has no release")
    folder = tmp_path_factory.mktemp("former")
    subprocess.run(["tar", "-x", "-C", folder], input=git("archive", tags[0]), check=True)
    return folder


class Senders:
    """Visitors who send events and orders one after the other, each to any daemon that takes it."""

    def __init__(self) -> None:
        self.daemons: list[Daemon] = []
        self.answers: dict[str, tuple[str, Any]] = {}
        """Sessions by the message's id, each after its visitor."""
        self.statuses: Counter[int] = Counter()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(4)]

    def _send(self, number: int) -> None:
        sent = 0
        while not self._ended.is_set():
            visitor = number * (VISITORS // 4) + sent % (VISITORS // 4)
            body = order(f"{number}-{sent}", visitor) if sent % 5 == 4 else {"key": "Page View", "data": {}}
            message = f"{number}-{sent}"
            body |= {"anonymousId": f"v{visitor}", "messageId": message}
            self.answers[message] = f"v{visitor}", self._answer(body, number + sent)
            sent += 1
            self._ended.wait(0.02)

    def go_on(self) -> None:
        """Wait for further answers."""
        enough = len(self.answers) + 100
        wait_until(lambda: len(self.answers) >= enough, 60)

    def _answer(self, body: dict[str, Any], first: int) -> Any:
        """The session in the first answer of 200. A repetition goes to the next daemon, as a proxy sends it."""
        for attempt in range(10_000):
            daemon = self.daemons[(first + attempt) % len(self.daemons)]
            try:
                reply = daemon.post("/track", body, DECLARED)
            except (OSError, HTTPException):  # it stops or starts
                continue
            self.statuses[reply.status] += 1
            if reply.status == 200:
                return reply.json()["session"]["sessionId"]
        raise AssertionError(f"nobody took {body}")

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    scheme, options = SERVERS[kind]
    with redis_server(folder, options) as server:
        if kind == "cluster":
            server.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            wait_until(lambda: server.client().cluster("INFO")["cluster_state"] == "ok")
        yield f"{scheme}://127.0.0.1:{server.port}"


@pytest.mark.parametrize("kind", SERVERS)
def test_daemons_are_upgraded_one_after_the_other_and_nothing_is_refused_lost_or_stored_twice(
    kind: str, former: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(store(kind, tmp_path / "redis"))
        crm, slow = Receiver(lambda _: 200), Receiver(lambda _: 200)
        config = tmp_path / "ingestd.toml"
        config.write_text(CONFIG.format(http=0, ops=0, url=url, crm=crm.port, slow=slow.port))

        def start(*, is_former: bool) -> Daemon:
            if not is_former:
                return stack.enter_context(Daemon(config))
            python = (sys.executable, "-m")
            return stack.enter_context(
                Daemon(config, prefix=python, command="ingestd", environment={"PYTHONPATH": str(former)})
            )

        senders = Senders()
        senders.daemons = [start(is_former=True), start(is_former=True)]
        with senders:
            for index in range(2):
                senders.go_on()
                assert senders.daemons[index].terminate() == 0
                senders.daemons[index] = start(is_former=False)
            senders.go_on()
        orders = sum(int(message.partition("-")[2]) % 5 == 4 for message in senders.answers)
        wait_until(lambda: sum(each["type"] == "attribution" for each in crm.records) == orders, 60)
        wait_until(lambda: len(set(slow.ids)) == len(set(crm.ids)), 60)
        exported = run_ingestd("events", "export", "--type", "event", config=config, timeout=60)
    assert senders.statuses.keys() == {200}
    records = [each for each in crm.records if each["type"] == "event"]
    assert len(exported.stdout.splitlines()) == len(records) == len(senders.answers)
    assert {each["messageId"]: (each["anonymousId"], each["sessionId"]) for each in records} == senders.answers
    assert len({session for _, session in senders.answers.values()}) == VISITORS
    attributed = Counter(each["orderId"] for each in crm.records if each["type"] == "attribution")
    assert set(attributed.values()) == {1}
    assert len(crm.ids) == len(set(crm.ids))
    assert len(slow.ids) == len(set(slow.ids))
