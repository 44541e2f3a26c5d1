"""A bystander is served at its usual speed during every attack, and all of its events are stored.

A latency is measured twice. The wall clock includes waits in which the daemon does nothing. But other programs of
the machine make it longer, so its bound is wide. The CPU time of the event loop is the time that the loop was held, and
no other program changes it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from statistics import median
from typing import NamedTuple

import pytest

from benchmarks.attacks import ATTACKED_ORDER, ATTACKS, Attack, Keys
from benchmarks.connection import CLOSED, Connection
from benchmarks.hostile import loop_seconds
from tests.support.daemon import PATIENCE
from tests.support.rawhttp import Client, event, head, post
from tests.support.trust import Site

from .conftest import PROXY, TARGETS

BY_NAME = {attack.name: attack for attack in ATTACKS}
ON_EACH_STORE = [
    "1 MiB and no such key",
    "an object of 130,000 members",
    "half a million traits in a batch",
    "a visitor linked again and again",
    "visitors linked to one user",
    "an order of the shop",
    "a refund of the shop's order",
    "a batch of 1,000 that are no events",
    "a batch of deep lists",
]
"""Attacks whose requests are valid or look for a key: one or two of each kind. `make hostile` measures all of them."""
BEFORE_THE_STORE = [
    "64 KiB of numbers",
    "240 kB of numbers, compressed",
    "1 MiB of empty gzip members",
    "a batch of 4 MiB of zeros, compressed",
    "1 MiB in chunks of a byte",
    "a bomb",
]
"""Attacks whose requests are refused before the store could matter, likewise."""
on_one_store = pytest.mark.parametrize(
    "pair", ["sqlite", pytest.param("redis", marks=pytest.mark.long)], indirect=True, scope="package"
)

MOST_WORK = 40.0
"""The additional time that the loop may work until it answers the bystander: a stranger's request takes up to 5 ms."""
MOST_WORK_WITH_KEY = 300.0
"""The same if the stranger has the public key and the daemon reads megabytes of JSON."""
MOST_TIME = 500.0
"""The factor by which an attack may lengthen the bystander's wait, by the wall clock."""

SLICE = 4  # events of the bystander, first without the attack and then during it
ROUNDS = 2
MOST_ROUNDS = 8

CONNECTIONS = 2  # attackers without the public key; there is one attacker with it
CROWD = 60  # connections that are open at the same time
PAUSE = 0.005  # seconds until one connection is closed

_clients = itertools.count()
_targets = itertools.cycle(TARGETS)


class Latency(NamedTuple):
    """Seconds until an answer."""

    time: float
    work: float


class Bystander:
    """An ordinary visitor, with another address than the strangers."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._client = Client(site.daemon.port, "127.0.0.2")
        self._sent = 0

    def latencies(self) -> list[Latency]:
        return [self._latency() for _ in range(SLICE)]

    def _latency(self) -> Latency:
        request = post(self._site.shop.public.id, event({"number": self._sent}, anonymousId="bystander"))
        begun, worked = time.perf_counter(), loop_seconds(self._site.daemon.pid)
        self._client.send(request)
        reply = self._client.reply()
        latency = Latency(time.perf_counter() - begun, loop_seconds(self._site.daemon.pid) - worked)
        assert reply.status == 200, reply.body
        self._sent += 1
        return latency

    def close(self) -> None:
        self._client.close()
        stored = self._site.shop.stored(containing='"bystander"')
        assert [record["data"]["number"] for record in stored] == [*range(self._sent)]


@pytest.fixture(scope="module")
def bystander(site: Site) -> Iterator[Bystander]:
    """A bystander. At the end each of its events must be stored once, in order."""
    bystander = Bystander(site)
    yield bystander
    bystander.close()


class Slices(NamedTuple):
    """The bystander's latencies: the typical time and the most work of each round."""

    times: list[float]
    works: list[float]

    def add(self, latencies: Sequence[Latency]) -> None:
        self.times.append(median(each.time for each in latencies))
        self.works.append(max(each.work for each in latencies))

    def typical(self) -> Latency:
        return Latency(median(self.times), median(self.works))


def assert_served(bystander: Bystander, attack: Callable[[], AbstractContextManager[None]], most_work: float) -> None:
    """Checks that the attack does not lengthen the bystander's typical latency too much.

    Slices with and without the attack alternate, so that the machine is the same for both. If the latency seems too
    high, more slices are measured.
    """
    without, during = Slices([], []), Slices([], [])
    for done in itertools.count(1):
        without.add(bystander.latencies())
        with attack():
            during.add(bystander.latencies())
        usual, slowed = without.typical(), during.typical()
        is_served = slowed.work < most_work * usual.work and slowed.time < MOST_TIME * usual.time
        if done == MOST_ROUNDS or (done >= ROUNDS and is_served):
            break
    assert slowed.work < most_work * usual.work
    assert slowed.time < MOST_TIME * usual.time


# Floods of requests


@contextmanager
def flood(site: Site, attack: Attack, statuses: Counter[int]) -> Iterator[None]:
    """Sends the requests without a pause, each from another address, with a server key that no test has used."""
    over, begun = threading.Event(), threading.Event()
    keys = Keys(site.shop.public.id, next(_targets))

    def send() -> None:
        connection = Connection(site.daemon.port, PROXY)
        while not over.is_set():
            number = next(_clients)
            client = f"X-Forwarded-For: 198.18.{number // 256 % 256}.{number % 256}"
            statuses[connection.ask(attack.make(keys, client))] += 1
            begun.set()
        connection.close()

    with at_work([send] * (1 if attack.public else CONNECTIONS), begun, over):
        yield


@contextmanager
def at_work(work: Sequence[Callable[[], None]], begun: threading.Event, over: threading.Event) -> Iterator[None]:
    """Threads that run `work` while the block runs. The block starts when they have begun."""
    with ThreadPoolExecutor(len(work)) as pool:
        results = [pool.submit(each) for each in work]
        try:
            assert begun.wait(PATIENCE)
            yield
        finally:
            over.set()
        for result in results:
            result.result()


@pytest.fixture(scope="module")
def signed_order(site: Site) -> None:
    """The order that strangers send and refund."""
    site.order("/customer-events", ATTACKED_ORDER)


@pytest.mark.usefixtures("signed_order")
@pytest.mark.parametrize("name", ON_EACH_STORE)
def test_a_flood_of_requests_does_not_slow_others(site: Site, bystander: Bystander, name: str) -> None:
    assert_served_beside(site, bystander, name)


@on_one_store
@pytest.mark.parametrize("name", BEFORE_THE_STORE)
def test_a_flood_of_refused_requests_does_not_slow_others(site: Site, bystander: Bystander, name: str) -> None:
    assert_served_beside(site, bystander, name)


def assert_served_beside(site: Site, bystander: Bystander, name: str) -> None:
    attack, statuses = BY_NAME[name], Counter[int]()
    most = MOST_WORK_WITH_KEY if attack.public else MOST_WORK
    assert_served(bystander, lambda: flood(site, attack, statuses), most)
    assert set() < {*statuses} - {CLOSED} <= attack.statuses


def test_strangers_change_nothing_of_a_signed_order(site: Site, signed_order: None) -> None:
    """The order has one attribution and no reversal, although strangers send and refund it."""
    site.order("/track", ATTACKED_ORDER, "thief", revenue=9000)
    site.refund("/track", ATTACKED_ORDER, 9000)
    site.order("/customer-events", "an-order-behind-it")
    site.derived("an-order-behind-it", 1)
    site.derived(ATTACKED_ORDER, 1)


# Crowds of connections

CROWDS: dict[str, Callable[[str], bytes]] = {
    "half a head": lambda key: head(key, "X: " + "x" * 8000)[:-2],
    "half a body": lambda key: head(key, "Content-Length: 1000000") + b" " * 300_000,
    "answers that nobody reads": lambda key: post(key, b"{", "Origin: https://shop.example") * 2000,
}


@contextmanager
def crowd(site: Site, data: bytes) -> Iterator[None]:
    """Many connections that send `data` as far as the daemon reads it. They are replaced one after the other."""
    over, begun = threading.Event(), threading.Event()
    clients: deque[Client] = deque()

    def press() -> None:
        while not over.wait(PAUSE if begun.is_set() else 0):
            clients.append(Client(site.daemon.port, "127.0.3.1"))
            clients[-1].socket.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                clients[-1].send(data)
            if len(clients) > CROWD:
                begun.set()
                clients.popleft().close()

    try:
        with at_work([press], begun, over):
            yield
    finally:
        for client in clients:
            client.close()


@on_one_store
@pytest.mark.parametrize("name", CROWDS)
def test_a_crowd_of_connections_does_not_slow_others(site: Site, bystander: Bystander, name: str) -> None:
    data = CROWDS[name](site.shop.public.id)
    assert_served(bystander, lambda: crowd(site, data), MOST_WORK_WITH_KEY)
