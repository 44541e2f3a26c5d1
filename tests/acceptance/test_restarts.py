"""Repeated restarts under load on a socket of a supervisor lose no request."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.clients import wait_until
from tests.support.daemon import BASE, Shop
from tests.support.init import NAMES, Init, listener

CLIENTS = 32
EVENTS = 4_000
RESTARTS = 5


class Sender:
    """Sends events one after the other, each once. An event that is not answered 200 is lost."""

    def __init__(self, port: int, key: str, name: str, *, keeps: bool) -> None:
        self.answered: list[str] = []
        self.lost: list[str] = []
        self._port = port
        self._name = name
        self._headers = {"Authorization": f"Bearer {key}", **({} if keeps else {"Connection": "close"})}

    def run(self, stopping: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not stopping.is_set():
            number = f"{self._name}-{len(self.answered) + len(self.lost)}"
            body = json.dumps({"key": "Page View", "anonymousId": self._name, "data": {"number": number}})
            try:
                connection.request("POST", f"{BASE}/track", body, self._headers)  # connects if there is no connection
                answer = connection.getresponse()
                answer.read()
                error = "" if answer.status == 200 else str(answer.status)
            except (OSError, http.client.HTTPException) as failure:
                error = repr(failure)
                connection.close()
            if error:
                self.lost.append(f"{number}: {error}")
            else:
                self.answered.append(number)
        connection.close()


@contextmanager
def load(port: int, key: str) -> Iterator[list[Sender]]:
    """Runs clients. Every second client keeps its connection, and the others connect for each event."""
    senders = [Sender(port, key, f"client-{number}", keeps=number % 2 == 0) for number in range(CLIENTS)]
    stopping = threading.Event()
    threads = [threading.Thread(target=sender.run, args=(stopping,)) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        yield senders
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_restarts_under_the_load_of_many_clients_lose_nothing(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    sockets = [(name, listener()) for name in NAMES]
    with Init(shop.config, sockets=sockets) as init:
        init.start()
        with load(sockets[0][1].getsockname()[1], shop.public.id) as senders:

            def answered() -> int:
                return sum(len(sender.answered) for sender in senders)

            def come_to(number: int) -> None:
                wait_until(lambda: answered() >= number, patience=120)

            for restart in range(1, RESTARTS + 1):
                come_to(EVENTS * restart // RESTARTS)
                assert init.stop() == 0
                init.start()
            come_to(answered() + 10 * CLIENTS)  # the last daemon serves requests too
        assert init.stop() == 0
    for _, sock in sockets:
        sock.close()
    assert [lost for sender in senders for lost in sender.lost] == []
    sent = Counter(number for sender in senders for number in sender.answered)
    assert all(sender.answered for sender in senders)
    assert sum(sent.values()) >= EVENTS
    journal = shop.exported()
    assert Counter(record["data"]["number"] for record in journal) == sent
    assert shop.archived() == journal
    assert "cut off" not in init.log
