"""Notifications to a supervisor by sd_notify(3): readiness, status, the stop, and the watchdog."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import BASE, Daemon, Shop, run_ingestd
from tests.support.distribution import write_distribution
from tests.support.init import NAMES, Init, listener

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}

BLOCKING = '''
    """Blocks the event loop for ever, once, at an event of a certain visitor."""

    import time
    from pathlib import Path

    from ingestd.api import hookimpl


    @hookimpl
    def enrich(event, state):
        once = Path("blocked-once")
        if event.anonymous_id == "blocks" and not once.exists():
            once.touch()
            time.sleep(3600)
'''


@pytest.fixture
def sockets() -> Iterator[list[tuple[str, socket.socket]]]:
    made = [(name, listener()) for name in NAMES]
    yield made
    for _, sock in made:
        sock.close()


def port(sock: socket.socket) -> int:
    number: int = sock.getsockname()[1]
    return number


def post(number: int, key: str, visitor: str = "visitor") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", number, timeout=30)
    try:
        body = json.dumps({**EVENT, "anonymousId": visitor})
        connection.request("POST", f"{BASE}/track", body, {"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_supervisor_is_notified_of_readiness_and_of_the_stop(
    abstract: bool, tmp_path: Path, sockets: list[tuple[str, socket.socket]]
) -> None:
    shop = Shop(tmp_path)
    with Init(shop.config, sockets=sockets, abstract=abstract) as init:
        init.start()
        assert post(port(sockets[0][1]), shop.public.id) == 200
        assert init.stop() == 0
    assert init.count("READY=1") == init.count("STOPPING=1") == 1
    assert init.told("STATUS")[0] == "starting: opening the store"
    last = next(message for message in init.messages if "STOPPING=1" in message)
    # shutdown_timeout of [http] for requests, the same again for sinks, and time to close the store.
    assert "EXTEND_TIMEOUT_USEC=50000000" in last


def test_the_status_describes_the_daemon_and_the_watchdog_is_fed(
    tmp_path: Path, sockets: list[tuple[str, socket.socket]]
) -> None:
    shop = Shop(tmp_path)
    with Init(shop.config, sockets=sockets, watchdog=3) as init:
        init.start()

        def busy() -> bool:
            assert post(port(sockets[0][1]), shop.public.id) == 200
            return any(
                re.fullmatch(r"serving: generation 1, 1 sink, [1-9]\d* events/s", each) for each in init.told("STATUS")
            )

        init.wait_until(busy)
        init.wait_until(lambda: "serving: generation 1, 1 sink, 0 events/s" in init.told("STATUS"))
        fed = init.count("WATCHDOG=1")
        init.wait_until(lambda: init.count("WATCHDOG=1") >= fed + 4)
        assert init.stop() == 0
    assert init.starved == 0


def test_a_daemon_with_a_hung_loop_is_restarted_and_waiting_clients_are_answered(
    tmp_path: Path, sockets: list[tuple[str, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, plugins = {"blocking": BLOCKING}, {"blocking": "blocking"}
    site = write_distribution(tmp_path / "site", "blocking", modules=modules, plugins=plugins)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path, {"plugins": 'enabled = ["keys", "session", "blocking", "sqlite", "jsonl"]'})
    number = port(sockets[0][1])
    with Init(shop.config, sockets=sockets, watchdog=4) as init:
        init.start()
        assert post(number, shop.public.id, "before") == 200

        def block() -> None:
            with pytest.raises((http.client.HTTPException, OSError)):
                post(number, shop.public.id, "blocks")

        blocking = threading.Thread(target=block)
        blocking.start()
        wait_until((tmp_path / "blocked-once").exists)
        assert post(number, shop.public.id, "waits") == 200  # the next process answers
        blocking.join(20)
        assert (init.starved, init.ends, init.count("READY=1")) == (1, [-6], 2)
        assert init.stop() == 0
    assert re.search(r"Fatal Python error: Aborted.*blocking\.py\", line \d+ in enrich", init.log, re.DOTALL)
    assert [record["anonymousId"] for record in shop.exported()] == ["before", "waits"]


def test_the_watchdog_of_another_process_is_not_fed(tmp_path: Path, sockets: list[tuple[str, socket.socket]]) -> None:
    shop = Shop(tmp_path)
    environment = {"WATCHDOG_USEC": "300000", "WATCHDOG_PID": "1"}
    with Init(shop.config, sockets=sockets, environment=environment) as init:
        init.start()
        init.wait_until(lambda: any(each.startswith("serving: ") for each in init.told("STATUS")))
        time.sleep(1)  # it would be fed some ten times
        assert init.stop() == 0
    assert init.count("WATCHDOG=1") == 0


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"NOTIFY_SOCKET": "/nowhere/notify"},
            "cannot connect to NOTIFY_SOCKET '/nowhere/notify': [Errno 2] No such file or directory",
        ),
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, "must be a path or an abstract name"),
    ],
    ids=["nobody there", "another kind"],
)
def test_a_supervisor_that_cannot_be_notified_does_no_harm(
    variables: dict[str, str], line: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config, environment=variables) as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        assert daemon.terminate() == 0
    assert sum(line in each for each in daemon.log) == 1


@pytest.mark.parametrize(
    ("urls", "option"),
    [
        ({"store": "sqlite:ingestd.db"}, "store.url"),
        ({"store": "sqlite:ingestd.db", "journal": "sqlite:journal.db"}, "store.url"),
        ({"store": "redis://127.0.0.1:1/0", "journal": "sqlite:journal.db"}, "journal.url"),
    ],
    ids=["SQLite", "SQLite twice", "a separate journal beside Redis"],
)
def test_serve_shared_refuses_a_store_for_one_daemon_and_names_the_remedy(
    urls: dict[str, str], option: str, tmp_path: Path
) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text("".join(f'[{name}]\nurl = "{url}"\n' for name, url in urls.items()))
    done = run_ingestd("serve", "--shared", config=config)
    assert done.returncode == 78
    assert f"{config}: {option}: only one daemon can have it" in done.stderr
    assert "let [store] url be redis://HOST" in done.stderr
