"""The cost of hostile requests: the event loop's time for each, and the latency of visitors during a flood of them.

Each kind (`benchmarks.attacks`) is sent in three ways:

- eight times alone, to measure the CPU time of the event loop's thread;
- eight times beside small requests on another connection, to measure how long the loop worked before it answered one;
- as fast as four connections can, beside four visitors who send an event every five milliseconds.

The first two measure CPU time, which other programs of the machine do not change. The latencies are wall-clock times.
The CPU time of a request is without the work that an idle daemon does meanwhile, which is measured first.

Every request has another client address, as if trusted proxies had forwarded it. So no rate or budget for an address
stops the flood. Exits 1 if a request without the public key took more than five milliseconds of the loop in all.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from tests.support.redis_server import redis_server

from .attacks import ATTACKS, BASE_PATH, Attack, Keys
from .servers import CONFIG, Server, ingestd, on_core

MOST = 5.0
"""Milliseconds that a request of an unknown sender may take of the loop, in all."""
SERVERS = ("fast", "tornado")
STORES = ("SQLite", "Redis")
REQUESTS = 8
CONNECTIONS = 4
PAUSE = 0.005  # seconds
IDLE_AFTER, IDLE = 1.0, 4.0
"""Seconds after the start until the daemon is idle, and the seconds in which its idle work is measured."""
CLOSED = 0
"""Stands for a status if the daemon has closed the connection, maybe during the request."""
PUBLIC = "a-public-key-of-the-bench"

# Each attack is measured three times, each time with new keys: a key with many failures has no budget left.
SERVER_KEYS = [str(uuid.UUID(int=number, version=4)) for number in range(3 * len(ATTACKS))]

_addresses = itertools.count(os.getpid() * 1000)


def config(server: str, store: str) -> str:
    http = f'[http]\nserver = "{server}"\ntrusted_proxies = ["127.0.0.1"]\n'
    text = CONFIG.replace("[http]\n", http).replace('"sqlite:ingestd.db"', f'"{store}"')
    for key, kind in ((PUBLIC, "public"), *((each, "server") for each in SERVER_KEYS)):
        text += f'[[plugins.keys.declared]]\nid = "{key}"\nkind = "{kind}"\ntenant = "bench"\n'
        if kind == "server":
            text += f'secret = "{uuid.uuid4().hex}"\ngrants = {{ CRM = ["ADMIN"] }}\n'
    return text


class Connection:
    """Sends one request at a time. If the server closes the connection, it is opened again."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        """`address` is the client's address."""
        self._port = port
        self._address = address
        self._socket = self._open()

    def _open(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._port), timeout=60, source_address=(self._address, 0))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def ask(self, request: bytes) -> int:
        """The status of the answer; `CLOSED` without an answer."""
        try:
            with contextlib.suppress(ConnectionError):  # the server may have answered and closed early
                self._socket.sendall(request)
            status, closes = self._answer(has_body=not request.startswith(b"HEAD "))
        except ConnectionError:
            status, closes = CLOSED, True
        if closes:
            self._socket.close()
            self._socket = self._open()
        return status

    def _answer(self, *, has_body: bool) -> tuple[int, bool]:
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        while has_body and len(body) < length:
            body += self._receive()
        return int(lines[0].split()[1]), "connection: close" in lines

    def _receive(self) -> bytes:
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionError
        return received

    def close(self) -> None:
        self._socket.close()


def client() -> str:
    number = next(_addresses)
    return f"X-Forwarded-For: 198.{18 + number // 65536 % 2}.{number // 256 % 256}.{number % 256}"


def loop_seconds(pid: int) -> float:
    """CPU time of the event loop's thread. While it runs, the value grows in steps of the system clock, up to 4 ms."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def idle_share(server: Server) -> float:
    """The part of the time that the event loop works without any request."""
    time.sleep(IDLE_AFTER)
    begun, before = time.perf_counter(), loop_seconds(server.pid)
    time.sleep(IDLE)
    return (loop_seconds(server.pid) - before) / (time.perf_counter() - begun)


def cost(server: Server, attack: Attack, keys: Keys, idle: float) -> float:
    """Milliseconds of the event loop's thread for a request, without the share of an idle daemon."""
    connection = Connection(server.port)
    taken = []
    for _ in range(REQUESTS):
        request = attack.make(keys, client())
        begun, before = time.perf_counter(), loop_seconds(server.pid)
        status = connection.ask(request)
        worked, passed = loop_seconds(server.pid) - before, time.perf_counter() - begun
        if status not in attack.statuses | {CLOSED}:
            sys.exit(f"{attack.name}: answered {status}")
        taken.append(max(0.0, worked - idle * passed) * 1000)
    connection.close()
    return median(taken)


def hold(server: Server, attack: Attack, keys: Keys) -> float:
    """The longest time in milliseconds that the loop works before it answers a small request beside this attack.

    This is CPU time, which other programs of the machine do not change. It grows in steps. So the wall-clock time
    counts if it is shorter.
    """
    attacker, bystander = Connection(server.port), Connection(server.port)
    small = b"OPTIONS %b/elsewhere HTTP/1.1\r\nHost: shop\r\n\r\n" % BASE_PATH.encode()
    longest = []
    for _ in range(REQUESTS):
        thread = threading.Thread(target=attacker.ask, args=[attack.make(keys, client())])
        waits = [0.0]
        thread.start()
        while thread.is_alive():
            begun, before = time.perf_counter(), loop_seconds(server.pid)
            bystander.ask(small)
            waits.append(min(time.perf_counter() - begun, loop_seconds(server.pid) - before) * 1000)
        longest.append(max(waits))
    attacker.close()
    bystander.close()
    return median(longest)


def flood(port: int, attack: Attack, keys: Keys, over: Event) -> None:
    """One connection of a flood; runs as a process."""
    connection = Connection(port)
    while not over.is_set():
        connection.ask(attack.make(keys, client()))


def visit(port: int, seconds: float, latencies: list[float]) -> None:
    """A visitor. Appends its latencies in milliseconds to the list."""
    event = {"key": "Page View", "anonymousId": f"visitor-{threading.get_ident()}", "data": {"title": "Linen shirts"}}
    body = json.dumps(event).encode()
    head = f"POST {BASE_PATH}/track HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {PUBLIC}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    connection = Connection(port)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.perf_counter()
        status = connection.ask(request)
        latencies.append((time.perf_counter() - before) * 1000)
        if status != 200:
            sys.exit(f"a visitor was answered {status}")
        time.sleep(PAUSE)
    connection.close()


def visitors(server: Server, seconds: float) -> float:
    """The visitors' p99 in milliseconds."""
    latencies: list[float] = []
    threads = [threading.Thread(target=visit, args=[server.port, seconds, latencies]) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(latencies)[int(len(latencies) * 0.99)]


def beside(server: Server, attack: Attack, keys: Keys, seconds: float) -> tuple[float, float]:
    """The visitors' p99 without the attack and during it."""
    without = visitors(server, seconds)
    over = multiprocessing.Event()
    processes = [
        multiprocessing.Process(target=flood, args=[server.port, attack, keys, over], daemon=True)
        for _ in range(CONNECTIONS)
    ]
    for process in processes:
        process.start()
    time.sleep(0.3)
    during = visitors(server, seconds)
    over.set()
    for process in processes:
        process.join(10)
        process.kill()
    return without, during


@contextlib.contextmanager
def started(kind: str, store: str) -> Iterator[Server]:
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
        with on_core(cores[-1]):
            if store == "Redis":
                url = stack.enter_context(redis_server(folder / "redis", {"appendfsync": "everysec"})).url
            else:
                url = "sqlite:ingestd.db"
        with on_core(cores[0]):
            server = stack.enter_context(ingestd(folder, config(kind, url)))
        with on_core(cores[-1]):
            yield server


def measure(server: Server, attacks: Sequence[Attack], seconds: float) -> list[str]:
    """Print a line for each attack. Returns the names of attacks that take too much of the loop."""
    idle = idle_share(server)
    print(f"  the costs are without the work of an idle daemon, {idle * 1000:.1f} ms a second")
    print(f"  {'':42}{'loop ms':>8}{'held ms':>9}{'p99 ms':>8}{'beside':>8}{'ratio':>7}")
    wrong = []
    keys = iter([Keys(PUBLIC, each) for each in SERVER_KEYS])
    for attack in attacks:
        taken = cost(server, attack, next(keys), idle)
        # A request cannot hold the loop for longer than the loop works on it.
        held = min(taken, hold(server, attack, next(keys)))
        without, during = beside(server, attack, next(keys), seconds)
        cells = f"{taken:8.2f}{held:9.2f}{without:8.1f}{during:8.1f}{during / without:7.1f}"
        print(f"  {attack.name:42}{cells}", flush=True)
        if taken > MOST and not attack.public:
            wrong.append(attack.name)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.8, help="time for which visitors are measured (default 0.8)")
    parser.add_argument("--server", action="append", choices=SERVERS, help="repeatable (default: all)")
    parser.add_argument("--store", action="append", choices=STORES, help="repeatable (default: all)")
    parser.add_argument("--only", default="", help="only attacks whose name contains this text")
    arguments = parser.parse_args()
    attacks = [attack for attack in ATTACKS if arguments.only in attack.name]
    if not attacks:
        parser.error(f"--only {arguments.only}: no attack has such a name")
    wrong = []
    for kind, store in itertools.product(arguments.server or SERVERS, arguments.store or STORES):
        begun = time.monotonic()
        print(f"server {kind}, store {store}")
        with started(kind, store) as server:
            wrong += [f"{kind}, {store}: {name}" for name in measure(server, attacks, arguments.seconds)]
        print(f"  {time.monotonic() - begun:.0f} s")
    for name in wrong:
        print(f"more than {MOST:g} ms: {name}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
