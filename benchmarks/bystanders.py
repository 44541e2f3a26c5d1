"""What visitors notice of an attack: how many of their events are refused, and how long the others take.

Four visitors send an event every five milliseconds, first alone and then beside the attack, which sends as fast as it
can on a number of connections. All its connections are in one process with a lower priority: visitors must not wait for
a busy load generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from .attacks import Attack, Keys, post
from .connection import Connection, client
from .servers import BASE_PATH

__all__ = ["Visits", "attacking", "visit"]

VISITORS = 4
PAUSE = 0.005  # seconds
WARM_UP = 0.5  # seconds of an attack before its effect is measured


class Visits(NamedTuple):
    """The median of the milliseconds until an answer, and the number of refused events."""

    median: float
    refused: int


def visit(port: int, key: str, seconds: float) -> Visits:
    """The answers that visitors get in this time."""
    found: list[tuple[float, int]] = []
    threads = [threading.Thread(target=_visitor, args=[port, key, seconds, found]) for _ in range(VISITORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies = [latency for latency, _ in found]
    refused = sum(status != 200 for _, status in found)
    return Visits(median(latencies), refused)


def _visitor(port: int, key: str, seconds: float, found: list[tuple[float, int]]) -> None:
    event = {"key": "Page View", "anonymousId": f"visitor-{threading.get_ident()}", "data": {"title": "Linen shirts"}}
    body = json.dumps(event).encode()
    request = post(f"{BASE_PATH}/track", body, f"Authorization: Bearer {key}", client())
    connection = Connection(port)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.perf_counter()
        status = connection.ask(request)
        found.append(((time.perf_counter() - before) * 1000, status))
        time.sleep(PAUSE)
    connection.close()


@contextlib.contextmanager
def attacking(port: int, attack: Attack, keys: Keys, connections: int) -> Iterator[None]:
    """Attack on so many connections meanwhile."""
    process = multiprocessing.Process(target=_attack, args=[port, attack, keys, connections], daemon=True)
    process.start()
    try:
        time.sleep(WARM_UP)
        yield
    finally:
        process.kill()
        process.join()


def _attack(port: int, attack: Attack, keys: Keys, connections: int) -> None:
    os.nice(19)

    async def attack_all() -> None:
        await asyncio.gather(*(_attacker(port, lambda: attack.make(keys, client())) for _ in range(connections)))

    asyncio.run(attack_all())


async def _attacker(port: int, make: Callable[[], bytes]) -> None:
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                closes = False
                while not closes:
                    writer.write(make())
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                    closes = b"connection: close" in head
