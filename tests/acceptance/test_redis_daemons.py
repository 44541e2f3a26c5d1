"""Several daemons on one Redis act like one, whichever of them gets a request or is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.events import Record
from ingestd.api.times import format_time, now, parse_time
from tests.support.backends import sqlite_backend
from tests.support.clients import at_once, wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.forked import QUICK_REDIS, short_times
from tests.support.journals import append
from tests.support.journeys import DAY, HOUR, IDENTIFY, SERVER, TRACK, attributions, derived
from tests.support.ports import own_host
from tests.support.redis_shop import RedisShop, redis_shop

TAKEOVER = 10.0  # seconds after which another daemon has taken over the consumers of a dead one
SETTLED = 0.0  # seconds after a start in which consumers pass on to the new daemon
LEASE = 5.0  # seconds before which no takeover is possible, unless the consumers were released
KILLS = 6
LOST = re.compile(r"attribution( in partition .*)?: its cursor has passed to another daemon")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisShop]:
    with redis_shop(tmp_path_factory.mktemp("redis-shop")) as shop:
        yield shop


@pytest.fixture(scope="module")
def daemons(redis: RedisShop) -> Iterator[list[Daemon]]:
    """Three daemons for tests that do not end any of them."""
    with redis.serve_with(3) as running:
        yield running


def send(shop: Shop, daemon: Daemon, endpoint: str, visitor: str, **members: Any) -> Reply:
    """Sends a page view with `members`, or an identify request."""
    body = {"anonymousId": visitor, **members}
    if endpoint != IDENTIFY:
        body = {"key": "Page View", "data": {}, **body}
    if endpoint == SERVER:
        return daemon.post_signed(body, shop.server)
    return daemon.post(endpoint, body, shop.public.id)


def of(shop: Shop, visitor: str) -> list[dict[str, Any]]:
    return [record for record in shop.stored(visitor) if record.get("anonymousId") == visitor]


def test_simultaneous_first_events_make_one_session(redis: RedisShop, daemons: list[Daemon]) -> None:
    for number in range(10):
        visitor = f"first {number}"
        replies = at_once([partial(send, redis, daemon, TRACK, visitor) for daemon in daemons * 4])
        assert [reply.status for reply in replies] == [200] * 12
        sessions = [reply.json()["session"] for reply in replies]
        assert len({session["sessionId"] for session in sessions}) == 1
        assert [session["isNew"] for session in sessions].count(True) == 1
        stored = of(redis, visitor)
        assert len(stored) == 12
        assert {record["sessionId"] for record in stored} == {sessions[0]["sessionId"]}
        assert [record["sessionIsNew"] for record in stored].count(True) == 1


def test_a_session_continues_on_every_daemon(redis: RedisShop, daemons: list[Daemon]) -> None:
    supplied = "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11"
    chance = random.Random(1)
    for number in range(10):
        visitor, (first, second, third) = f"supplied {number}", chance.sample(daemons, 3)
        send(redis, first, TRACK, visitor)
        replies = [send(redis, second, TRACK, visitor, sessionId=supplied), send(redis, third, IDENTIFY, visitor)]
        assert [reply.json()["session"] for reply in replies] == [
            {"sessionId": supplied, "isNew": True},
            {"sessionId": supplied, "isNew": False},
        ]


def test_a_link_takes_effect_on_all_daemons_at_once(redis: RedisShop, daemons: list[Daemon]) -> None:
    chance = random.Random(2)
    users = []
    for number in range(11):  # a visitor may change users ten times a day
        here, there = chance.sample(daemons, 2)
        users.append(f"user {number}")
        assert send(redis, here, IDENTIFY, "linked", userId=users[-1]).status == 200
        endpoint = chance.choice([TRACK, SERVER])
        assert send(redis, there, endpoint, "linked").status == 200
    assert [record["userId"] for record in of(redis, "linked") if record["type"] == "event"] == users


def test_a_message_is_stored_once_if_several_daemons_get_its_copies(redis: RedisShop, daemons: list[Daemon]) -> None:
    for number in range(8):
        visitor, message = f"copied {number}", f"message {number}"
        is_known = number % 2 == 1
        if is_known:
            send(redis, daemons[0], TRACK, visitor)
        copies = at_once([
            partial(send, redis, daemon, endpoint, visitor, messageId=message)
            for daemon in daemons
            for endpoint in (TRACK, SERVER, IDENTIFY, TRACK)
        ])  # fmt: skip
        assert [reply.status for reply in copies] == [200] * 12
        # Later copies with other bodies and to other endpoints.
        later = [
            send(redis, daemons[0], SERVER, visitor, messageId=message, key="Product Viewed"),
            send(redis, daemons[1], IDENTIFY, visitor, messageId=message, userId="nobody"),
            send(redis, daemons[2], TRACK, f"not {visitor}", messageId=message),
        ]
        [stored] = [record for record in redis.stored(message) if record["messageId"] == message]
        first = {"sessionId": stored["sessionId"], "isNew": stored["sessionIsNew"]}
        for reply in (*copies, *later):
            session = reply.json()["session"]
            assert session == {name: first[name] for name in session}
        assert first["isNew"] is not is_known


def test_keys_are_known_and_revoked_everywhere_within_two_seconds(redis: RedisShop, daemons: list[Daemon]) -> None:
    def status(daemon: Daemon, key: str) -> int:
        return daemon.post(TRACK, {"key": "Page View", "data": {}, "anonymousId": "keyed"}, key).status

    public, server = redis.create_key("public", "other"), redis.create_key("server", "other")
    wait_until(lambda: all(status(daemon, public.id) == 200 for daemon in daemons), 2.0)
    body = {"key": "Page View", "data": {}, "anonymousId": "keyed"}
    wait_until(lambda: all(daemon.post_signed(body, server).status == 200 for daemon in daemons), 2.0)
    for key in (public, server):
        redis.command("keys", "revoke", key.id)
    wait_until(lambda: all(status(daemon, public.id) == 401 for daemon in daemons), 2.0)
    wait_until(lambda: all(daemon.post_signed(body, server).status == 401 for daemon in daemons), 2.0)


def test_an_order_is_attributed_once_however_often_and_wherever_it_is_sent(
    redis: RedisShop, daemons: list[Daemon]
) -> None:
    completed = now() - HOUR
    touched: dict[str, str] = {}
    for number in range(5):
        phone, laptop, user = f"phone {number}", f"laptop {number}", f"buyer {number}"
        first, second, third = random.Random(number).sample(daemons, 3)
        old = send(
            redis, first, SERVER, phone,
            timestamp=format_time(completed - DAY), context={"campaign": {"source": "google"}},
        )  # fmt: skip
        send(redis, second, IDENTIFY, phone, userId=user)
        assert old.status == 200
        touch = send(redis, third, TRACK, laptop, timestamp=format_time(completed - HOUR), dispatchId="mail")
        touched[f"order {number}"] = touch.headers["x-request-id"]
        send(redis, first, IDENTIFY, laptop, userId=user)
        order = {"key": "Order Completed", "data": {"order_id": f"order {number}", "revenue": 40}}
        timestamp = format_time(completed)
        replies = at_once(
            [partial(send, redis, each, SERVER, phone, timestamp=timestamp, **order) for each in daemons * 2]
        )
        assert [reply.status for reply in replies] == [200] * 6
    found = attributions(redis, touched)
    for order_id, touch_id in touched.items():
        assert found[order_id]["touchpoint"]["eventId"] == touch_id
        assert [touch["source"] for touch in found[order_id]["touchpoints"]] == ["google", None]

    # After all copies have been processed, each order still has one attribution.
    last = redis.stored()[-1]["id"]
    wait_until(lambda: last in {record["id"] for record in redis.archived()})
    assert Counter(record["orderId"] for record in derived(redis)) == dict.fromkeys(touched, 1)
    repeated = sum(each.metric('ingestd_attribution_orders_total{result="repeated"}') for each in daemons)
    assert repeated == 5 * 5


def test_the_archive_has_everything_once_and_in_order(redis: RedisShop, daemons: list[Daemon]) -> None:
    at_once([partial(send, redis, daemon, TRACK, f"archived {number}") for number in range(5) for daemon in daemons])
    journal = redis.exported()
    wait_until(lambda: len(redis.archived()) >= len(journal))
    assert redis.archived()[: len(journal)] == journal


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_takeover_by_another_daemon_continues_after_the_last_record(tmp_path: Path, *, is_killed: bool) -> None:
    result = 'ingestd_attribution_orders_total{result="attributed"}'
    times = QUICK_REDIS if is_killed else {}
    with redis_shop(tmp_path) as shop, short_times(**times), Daemon(shop.config) as first:
        send(shop, first, TRACK, "visitor", dispatchId="mail")
        order = {"key": "Order Completed", "data": {"order_id": "before", "revenue": 40}}
        send(shop, first, SERVER, "visitor", **order)
        attributions(shop, ["before"])
        assert first.metric(result) == 1  # the first daemon was alone
        with shop.serve() as second:
            if is_killed:
                first.kill()
            else:
                assert first.terminate() == 0
            ended = time.monotonic()
            send(shop, second, SERVER, "visitor", **order)
            send(shop, second, SERVER, "visitor", key="Order Completed", data={"order_id": "after"})
            attributions(shop, ["after"])
            assert time.monotonic() - ended < (TAKEOVER if is_killed else LEASE)
            assert second.metric(result) == 1
        assert [record["orderId"] for record in shop.exported("--type", "attribution")] == ["before", "after"]


def test_a_daemon_that_was_suspended_beyond_its_lease_attributes_nothing_twice(tmp_path: Path) -> None:
    result = 'ingestd_attribution_orders_total{result="attributed"}'
    with redis_shop(tmp_path) as shop, short_times(**QUICK_REDIS), shop.serve_with(2) as daemons:
        numbers = iter(range(1_000_000))
        other = daemons[1]

        def order() -> str:
            name = f"order {next(numbers)}"
            send(shop, other, TRACK, name, dispatchId="mail")
            data = {"order_id": name, "revenue": 40}
            assert send(shop, other, SERVER, name, key="Order Completed", data=data).status == 200
            return name

        attributions(shop, [order()])
        time.sleep(SETTLED)
        before = [daemon.metric(result) for daemon in daemons]
        attributions(shop, [order()])
        other, sleeper = sorted(daemons, key=lambda daemon: daemon.metric(result) - before[daemons.index(daemon)])
        for _ in range(20):  # so that the sleeper is suspended while it processes orders
            order()
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            taken = other.metric(result)
            wait_until(lambda: bool(order()) and other.metric(result) > taken, TAKEOVER)
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        wait_until(lambda: bool(order()) and sleeper.read_log() and any(map(LOST.search, sleeper.log)))
        attributions(shop, [order()])
        journal = shop.exported()
        archive = shop.archived()
    count = next(numbers)
    attributed = [record["orderId"] for record in journal if record["type"] == "attribution"]
    assert attributed == [f"order {number}" for number in range(count)]
    assert [*{record["id"]: None for record in archive}] == [record["id"] for record in journal]


@dataclass
class Sent:
    """One request, its answers, and whether an attempt had no answer."""

    endpoint: str
    visitor: str
    members: dict[str, Any]
    answers: list[Reply] = field(default_factory=list)
    is_disturbed: bool = False
    """Whether an attempt had no answer."""


class Customers:
    """Threads that send to random daemons, and repeat requests without an answer to another daemon.

    The threads share a few visitors, which change over time, and the same users and orders.
    """

    def __init__(self, shop: Shop, daemons: list[Daemon], seed: int, *, threads: int = 4) -> None:
        self.sent: list[Sent] = []
        self._shop = shop
        self._daemons = daemons
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(f"{seed}-{number}",)) for number in range(threads)]

    def __enter__(self) -> Customers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert not self._failures, self._failures

    def _run(self, name: str) -> None:
        chance = random.Random(name)
        count = 0
        try:
            while not self._stopping.wait(chance.uniform(0.0, 0.02)):
                count += 1
                sent = _request(chance, f"{name}-{count}", len(self.sent) // 100)
                self.sent.append(sent)
                self._send(chance, sent)
                if "messageId" in sent.members and chance.random() < 0.2:
                    self._send(chance, sent)
        except BaseException as error:  # noqa: BLE001 - reported by the thread that joins
            self._failures.append(error)

    def _send(self, chance: random.Random, sent: Sent) -> None:
        """Sends the request until it is answered, if it may be repeated. The number of attempts is limited."""
        for _ in range(500):
            daemon = chance.choice(self._daemons)
            try:
                reply = send(self._shop, daemon, sent.endpoint, sent.visitor, **sent.members)
            except (OSError, http.client.HTTPException):
                sent.is_disturbed = True
            else:
                assert reply.status == 200, reply.body
                sent.answers.append(reply)
                return
            if self._stopping.wait(0.02) or not ("messageId" in sent.members or "order_id" in sent.members["data"]):
                return


def _request(chance: random.Random, number: str, epoch: int) -> Sent:
    visitor = f"visitor-{epoch}-{chance.randrange(4)}"
    members: dict[str, Any] = {"number": number, "messageId": number}
    order = {"order_id": f"order-{chance.randrange(60)}", "revenue": 40, "currency": "EUR"}
    kind = chance.choices(["touch", "mail", "link", "view", "order", "refund"], [8, 4, 3, 3, 5, 1])[0]
    match kind:
        case "touch":
            members["context"] = {"campaign": {"source": chance.choice(["google", "bing"]), "name": number}}
            members["timestamp"] = format_time(now() - chance.randrange(DAY // 2))
        case "mail":
            members["dispatchId"] = f"mail-{number}"
        case "link":
            return Sent(IDENTIFY, visitor, {**members, "userId": f"user-{chance.randrange(5)}"})
        case "view":
            members["data"] = {}
            if chance.random() < 0.5:
                del members["messageId"]
        case "order":
            members |= {"key": "Order Completed", "data": order}
            if chance.random() < 0.5:
                # The order may be stored twice after a lost answer, but must be attributed once.
                del members["messageId"]
        case "refund":
            members |= {"key": "Order Refunded", "data": {**order, "revenue": chance.choice([10, 40])}}
    return Sent(chance.choice([TRACK, SERVER]), visitor, members)


def derived_by_one_undisturbed_daemon(
    folder: Path, journal: Sequence[dict[str, Any]], last: str
) -> list[dict[str, Any]]:
    """The records that one daemon on SQLite derives from a journal with these records. `last` is the last order."""
    folder.mkdir()
    calm = Shop(folder)
    records = [
        Record(record["type"], parse_time(record["receivedAt"]) or 0, json.dumps(record).encode())
        for record in journal
        if record["type"] in {"event", "identify"}
    ]

    async def fill() -> None:
        async with sqlite_backend(folder) as backend:
            await append(backend, records)

    asyncio.run(fill())
    with calm.serve():
        attributions(calm, [last])
    return [record for record in calm.exported() if record["type"] not in {"event", "identify"}]


@pytest.mark.parametrize(("count", "seed"), [(2, 1), (3, 2)])
def test_killed_at_random_they_are_one_shop(tmp_path: Path, count: int, seed: int) -> None:
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    # Requests to the port of an ended daemon must not reach another program.
    with redis_shop(tmp_path, host=own_host()) as shop, short_times(**QUICK_REDIS), ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(shop.config)) for _ in range(count)]
        with Customers(shop, daemons, seed) as customers:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.1, 1.5))
                # Sometimes all daemons end.
                ended = chance.sample(range(count), chance.randint(1, count) if chance.random() < 0.3 else 1)
                for index in ended:
                    if chance.random() < 0.7:
                        daemons[index].kill()
                    else:
                        assert daemons[index].terminate() == 0, "\n".join(daemons[index].log)
                for index in ended:
                    daemons[index] = stack.enter_context(Daemon(shop.config))
            enough = len(customers.sent) + 50
            wait_until(lambda: len(customers.sent) > enough)
        sent = customers.sent
        reply = send(shop, daemons[0], SERVER, "last", key="Order Completed", data={"order_id": "last"})
        assert reply.status == 200
        attributions(shop, ["last"])
        journal = shop.exported()
        wait_until(lambda: {record["id"] for record in journal} <= {record["id"] for record in shop.archived()})
        archive = shop.archived()
        for daemon in daemons:
            assert daemon.terminate() == 0, "\n".join(daemon.log)

    # No answered event is missing, and no message is stored twice.
    by_id = {record["id"]: record for record in journal}
    assert len(by_id) == len(journal)
    messages = Counter(record["messageId"] for record in journal if record.get("messageId") is not None)
    assert set(messages.values()) == {1}
    by_message = {record["messageId"]: record for record in journal if record.get("messageId") is not None}
    assert sum(each.is_disturbed for each in sent) > 0, "hardly a kill came during a request"
    for each in sent:
        for answer in each.answers:
            message = each.members.get("messageId")
            record = by_id[answer.headers["x-request-id"]] if message is None else by_message[message]
            assert record["extra"]["number"] == each.members["number"]
            session = answer.json()["session"]
            assert session == {
                name: value
                for name, value in (("sessionId", record["sessionId"]), ("isNew", record["sessionIsNew"]))
                if name in session
            }

    # A visitor has one session, which is new once unless the first event was not answered.
    by_visitor: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in journal:
        if "sessionIsNew" in record:
            by_visitor[record["anonymousId"]].append(record)
    disturbed = {each.visitor for each in sent if each.is_disturbed}
    for visitor, records in by_visitor.items():
        assert len({record["sessionId"] for record in records}) == 1
        new = [record["sessionIsNew"] for record in records].count(True)
        assert new == 1 or (new == 0 and visitor in disturbed)

    # Each order is attributed once, and again if a signed one superseded it. One undisturbed daemon does the same.
    orders = {record["data"]["order_id"] for record in journal if record.get("key") == "Order Completed"}
    superseded = {each["orderId"] for each in journal if each.get("reason") == "superseded"}
    expected = {order_id: 1 + (order_id in superseded) for order_id in orders}
    assert Counter(each["orderId"] for each in journal if each["type"] == "attribution") == expected
    results = [record for record in journal if record["type"] not in {"event", "identify"}]
    assert results == derived_by_one_undisturbed_daemon(tmp_path / "calm", journal, "last")
    assert any(len(each["touchpoints"]) > 5 for each in results if each["type"] == "attribution")

    # The archive has all records in order. Records written by a killed daemon may occur twice.
    assert list(dict.fromkeys(record["id"] for record in archive)) == [record["id"] for record in journal]
    assert {record["id"]: record for record in archive} == by_id
