"""State on Redis and the journal in a file, for one daemon: the promises of a single file, also after kills."""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.store import state_key
from tests.support.clients import at_once, wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.forked import short_times
from tests.support.journeys import DAY, HOUR, IDENTIFY, TRACK, Sender, attributions, derived
from tests.support.redis_contents import redis_contents
from tests.support.redis_shop import RedisShop, redis_shop
from tests.support.sqlite_lock import locked

JOURNAL = {"journal": 'url = "sqlite:journal.db"'}
SUPPLIED = "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11"
SLOWEST = 0.8  # the longest time in seconds from an order to a kill; attribution takes less
KILLS = 8
NOTED = f"ingestd:{state_key('consumer-step', '', 'attribution')}"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisShop]:
    with redis_shop(tmp_path_factory.mktemp("window"), JOURNAL) as shop:
        yield shop


@pytest.fixture(scope="module")
def daemon(window: RedisShop) -> Iterator[Daemon]:
    with window.serve() as running:
        yield running


def of(shop: Shop, visitor: str) -> list[dict[str, Any]]:
    return [record for record in shop.stored(visitor) if record.get("anonymousId") == visitor]


def session(daemon: Daemon, shop: Shop, endpoint: str, visitor: str, **members: Any) -> dict[str, Any]:
    body = {"anonymousId": visitor, **members}
    reply = daemon.post(
        endpoint, body if endpoint == IDENTIFY else {"key": "Page View", "data": {}, **body}, shop.public.id
    )
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()["session"]
    return found


def test_the_state_is_on_redis_and_the_journal_in_its_file(window: RedisShop, daemon: Daemon) -> None:
    session(daemon, window, TRACK, "somebody")
    with window.redis.client() as client:
        found = redis_contents(client)
    assert {key.partition(":")[0] for key in found} == {"ingestd"}
    kinds = {key.split(":")[1] for key in found}
    assert {"session", "keys", "journal-owner"} <= kinds
    assert "journal" not in kinds
    assert "somebody" not in str(found)
    with closing(sqlite3.connect(window.folder / "journal.db")) as connection:
        assert connection.execute("SELECT count(*) FROM journal").fetchone() > (0,)


def test_sessions_and_links(window: RedisShop, daemon: Daemon) -> None:
    first = at_once([lambda: session(daemon, window, TRACK, "first")] * 12)
    assert len({each["sessionId"] for each in first}) == 1
    assert [each["isNew"] for each in first].count(True) == 1
    assert session(daemon, window, TRACK, "first", sessionId=SUPPLIED) == {"sessionId": SUPPLIED, "isNew": True}
    assert session(daemon, window, IDENTIFY, "first", userId="ann") == {"sessionId": SUPPLIED, "isNew": False}
    session(daemon, window, TRACK, "first")
    assert [record["userId"] for record in of(window, "first")] == [None] * 13 + ["ann"] * 2


def test_a_message_is_stored_once(window: RedisShop, daemon: Daemon) -> None:
    copies = at_once([lambda: session(daemon, window, TRACK, "copied", messageId="m-1")] * 8)
    assert len(copies) == 8
    assert all(each == copies[0] for each in copies)
    [stored] = of(window, "copied")
    assert copies[0] == {"sessionId": stored["sessionId"], "isNew": True}


def test_keys_are_known_and_revoked_within_two_seconds(window: RedisShop, daemon: Daemon) -> None:
    key = window.create_key("public", "other")

    def status() -> int:
        return daemon.post(TRACK, {"key": "Page View", "data": {}, "anonymousId": "keyed"}, key.id).status

    wait_until(lambda: status() == 200, 2.0)
    window.command("keys", "revoke", key.id)
    wait_until(lambda: status() == 401, 2.0)


def test_orders_are_attributed_over_devices(window: RedisShop, daemon: Daemon) -> None:
    sender = Sender(window, daemon)
    sender.touch("phone", DAY, "google")
    sender.link("phone", "bob")
    newest = sender.touch("laptop", HOUR, "bing")
    sender.link("laptop", "bob")
    for visitor in ("phone", "laptop", "phone"):
        sender.order(visitor, "o-1", revenue=40)
    sender.order("laptop", "o-1", "Order Refunded", revenue=10)
    found = attributions(window, ["o-1"])["o-1"]
    assert found["touchpoint"]["eventId"] == newest
    assert [touch["source"] for touch in found["touchpoints"]] == ["google", "bing"]
    wait_until(lambda: len(derived(window, "attribution_reversal")) == 1)
    assert len(derived(window)) == 1
    # The archive has all records of the journal in order.
    journal = window.exported()
    wait_until(lambda: len(window.archived()) == len(journal))
    assert window.archived() == journal


# Kills


class Orders:
    """Orders of visitors with one touch each, refunds of every second order, and the check of their results."""

    def __init__(self, shop: RedisShop) -> None:
        self._shop = shop
        self.touches: dict[str, str] = {}
        self.refunded: list[str] = []

    def send(self, daemon: Daemon, *, alone: bool = False) -> str:
        """Sends one more order, and returns its id after the answer.

        Attribution decides it in one step with earlier events, or in a step `alone`.
        """
        number = len(self.touches)
        name, visitor = f"o-{number}", f"visitor-{number}"
        sender = Sender(self._shop, daemon)
        self.touches[name] = sender.touch(visitor, HOUR, "google")
        if alone:
            wait_until(lambda: self._shop.is_done("attribution"))
        sender.order(visitor, name, revenue=40)
        if number % 2:
            self.refunded.append(name)
            sender.order("erp", name, "Order Refunded", revenue=15)
        return name

    def are_right(self, daemon: Daemon) -> None:
        """Checks that each order is attributed once, and that each refund is reversed once."""
        last = self.send(daemon)
        attributions(self._shop, [last])
        found = self._shop.exported("--type", "attribution")
        assert {each["orderId"]: each["touchpoint"]["eventId"] for each in found} == self.touches
        assert len(found) == len(self.touches)
        # Reversals may be derived one step later.
        wait_until(lambda: len(self._shop.stored('"attribution_reversal"')) >= len(self.refunded))
        reversals = self._shop.exported("--type", "attribution_reversal")
        assert [(each["orderId"], each["value"]["revenue"]) for each in reversals] == [
            (name, 15) for name in self.refunded
        ]
        journal = {record["id"] for record in self._shop.exported()}
        wait_until(lambda: journal <= {record["id"] for record in self._shop.archived()})


def test_kills_between_answer_and_attribution_change_nothing(tmp_path: Path) -> None:
    with redis_shop(tmp_path, JOURNAL) as shop:
        orders = Orders(shop)
        for number in range(KILLS):
            with Daemon(shop.config) as daemon:
                orders.send(daemon)
                orders.send(daemon)
                kill = threading.Timer(SLOWEST * number / (KILLS - 1), os.kill, (daemon.pid, signal.SIGKILL))
                kill.start()
                kill.join()
                daemon.wait()
        with shop.serve() as daemon:
            orders.are_right(daemon)


def noted(shop: RedisShop, name: str) -> bool:
    """Whether Redis has noted the step that attributed an order. The note contains records in base 64."""
    with shop.redis.client() as client:
        raw = client.get(NOTED) or b"|[0, 0, 0, []]"
    records = json.loads(raw.partition(b"|")[2])[3]
    return any(json.loads(base64.b64decode(body))["orderId"] == name for _, _, body in records)


def is_decided(shop: RedisShop, name: str) -> bool:
    """Whether the journal has the attribution of an order."""
    with closing(sqlite3.connect(shop.folder / "journal.db")) as connection:
        bodies = connection.execute("SELECT body FROM journal WHERE type = 'attribution'").fetchall()
    return any(f'"orderId":"{name}"'.encode() in body for (body,) in bodies)


@contextmanager
def between_the_commits(shop: RedisShop, orders: Orders, daemon: Daemon) -> Iterator[str]:
    """Inside the block the state has an order's attribution, and the journal does not and cannot be written."""
    for _ in range(20):  # on a busy machine the daemon may be faster than the lock
        # The lock may also hold up the step before, whose note would stay.
        name = orders.send(daemon, alone=True)
        with locked(shop.folder / "journal.db"):
            if not is_decided(shop, name):
                # The consumer may have met the lock before; then it tries again after half a minute at most.
                wait_until(partial(noted, shop, name), 60)
                yield name
                return
    raise AssertionError("the daemon is always faster than the lock")


@contextmanager
def killed_between_the_commits(shop: RedisShop, orders: Orders) -> Iterator[str]:
    with Daemon(shop.config) as daemon, between_the_commits(shop, orders, daemon) as name:
        daemon.kill()
    assert not is_decided(shop, name)
    yield name


def test_kills_between_the_two_commits_of_an_attribution(tmp_path: Path) -> None:
    with redis_shop(tmp_path, JOURNAL) as shop:
        orders = Orders(shop)
        for _ in range(3):
            with killed_between_the_commits(shop, orders):
                pass
        with shop.serve() as daemon:
            orders.are_right(daemon)


def test_a_journal_that_fails_between_the_two_commits(tmp_path: Path) -> None:
    """The daemon recovers, and has counted each delivery once."""
    with redis_shop(tmp_path, JOURNAL) as shop:
        orders = Orders(shop)
        with shop.serve() as daemon:
            for _ in range(2):
                with between_the_commits(shop, orders, daemon):
                    wait_until(lambda: daemon.ops("/readyz").status == 503)
                wait_until(lambda: daemon.ops("/readyz").status == 200)
            orders.are_right(daemon)
            delivered = 'ingestd_sink_delivered_total{sink="archive"}'
            wait_until(lambda: daemon.metric(delivered) == len(shop.stored()))


def test_a_person_is_forgotten_whose_order_was_just_decided(tmp_path: Path) -> None:
    """The note that a killed daemon has left between the two commits is forgotten too."""
    with redis_shop(tmp_path, JOURNAL) as shop:
        orders = Orders(shop)
        with killed_between_the_commits(shop, orders) as name:
            shop.command("forget", "--anonymous", "visitor-0")
        with shop.serve() as daemon:
            last = orders.send(daemon)
            found = attributions(shop, [name, last])
            assert found[last]["touchpoint"]["anonymousId"] == "visitor-1"
            with shop.redis.client() as client:
                left = [key for key, values in redis_contents(client).items() if b"visitor-0" in b"\n".join(values)]
            assert left == []
        records = [record for record in shop.exported() if record["type"] != "erasure"]
        assert "visitor-0" not in str(records)


# One daemon


def test_a_second_daemon_is_refused_with_the_reason(tmp_path: Path) -> None:
    with redis_shop(tmp_path, JOURNAL) as shop, short_times(ownership=0.5):
        other = tmp_path / "other.toml"
        other.write_text(shop.config.read_text().replace("sqlite:journal.db", "sqlite:other.db"))
        with shop.serve() as daemon:
            began = time.monotonic()
            refused = run_ingestd("serve", config=other)
            assert refused.returncode == 78
            said = refused.stderr.splitlines()[-1]
            for what in ("[journal] url", "[store] url", f"process {daemon.pid}", "stop that daemon"):
                assert what in said
            assert time.monotonic() - began < 10
            # With the same journal, the lock of the file refuses it first.
            refused = run_ingestd("serve", config=shop.config)
            assert refused.returncode == 78
            assert f"in use by process {daemon.pid}" in refused.stderr
            # Commands are not refused.
            assert session(daemon, shop, TRACK, "visitor")["isNew"]
            assert [record["anonymousId"] for record in shop.exported()] == ["visitor"]
            assert run_ingestd("events", "export", config=other).stdout == ""
        with Daemon(other) as daemon:  # the first daemon has stopped, so this one starts at once
            daemon.kill()
        began = time.monotonic()
        with Daemon(other):  # a restart after a kill does not wait either
            assert time.monotonic() - began < 5


def test_a_daemon_that_was_taken_for_dead_stops(tmp_path: Path) -> None:
    with redis_shop(tmp_path, JOURNAL) as shop, short_times(ownership=0.5, ownership_silence=2):
        other = tmp_path / "other.toml"
        other.write_text(shop.config.read_text().replace("sqlite:journal.db", "sqlite:other.db"))
        with Daemon(shop.config) as sleeper:
            os.kill(sleeper.pid, signal.SIGSTOP)
            with Daemon(other) as second:
                os.kill(sleeper.pid, signal.SIGCONT)
                assert sleeper.wait() == 1
                assert any(f"is in use by process {second.pid}" in line for line in sleeper.log)
                assert run_ingestd("serve", config=shop.config).returncode == 78
                assert second.terminate() == 0
