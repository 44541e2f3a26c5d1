"""The cost of hostile requests: the event loop's time for each, and what visitors notice of a flood of them.

Each kind (`benchmarks.attacks`) is sent in three ways:

- eight times alone, to measure the CPU time of the event loop's thread;
- eight times beside small requests on another connection, to measure how long the loop worked before it answered one;
- as fast as 4, 12 and 64 connections can, beside four visitors (`benchmarks.bystanders`).

The first two measure CPU time, which other programs of the machine do not change. The CPU time of a request is without
the work that an idle daemon does meanwhile, which is measured first. The visitors' times are wall-clock times, so a
busy machine spoils them: the ratio is to the visitors' median right before.

Every request has another client address, as if trusted proxies had forwarded it. So no rate, budget or bound for an
address stops the flood. Exits 1 if a request without the public key took more than five milliseconds of the loop in
all, if an event of a visitor was refused, or if the visitors' median was more than three times as long as before.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from .attacks import ATTACKS, Attack, Keys
from .bystanders import attacking, visit
from .connection import CLOSED, Connection, client
from .servers import BASE_PATH, CONFIG, Server, ingestd, on_core, pairs, parser_of_pairs, store_url

MOST = 5.0
"""Milliseconds that a request of an unknown sender may take of the loop, in all."""
MOST_TIMES = 3.0
"""The longest median of visitors beside an attack, as a multiple of their median without it."""
ATTEMPTS = 3
CROWDS = (4, 12, 64)
"""Numbers of attacking connections."""
LOAD = {
    "a visitor linked again and again",
    "visitors linked to one user",
    "an order of the shop",
    "a refund of the shop's order",
}
"""Events of usual size that are stored. More than a daemon can store are load, which a rate limit bounds. So these are
made on the first number of connections alone."""
REQUESTS = 8
IDLE_AFTER, IDLE = 1.0, 4.0
"""Seconds after the start until the daemon is idle, and the seconds in which its idle work is measured."""
PUBLIC = "a-public-key-of-the-bench"

# Each attack is measured three times, each time with new keys: a key with many failures has no budget left.
SERVER_KEYS = [str(uuid.UUID(int=number, version=4)) for number in range(3 * len(ATTACKS))]


def config(server: str, store: str) -> str:
    http = f'[http]\nserver = "{server}"\ntrusted_proxies = ["127.0.0.1"]\n'
    text = CONFIG.replace("[http]\n", http).replace('"sqlite:ingestd.db"', f'"{store}"')
    for key, kind in ((PUBLIC, "public"), *((each, "server") for each in SERVER_KEYS)):
        text += f'[[plugins.keys.declared]]\nid = "{key}"\nkind = "{kind}"\ntenant = "bench"\n'
        if kind == "server":
            text += f'secret = "{uuid.uuid4().hex}"\ngrants = {{ CRM = ["ADMIN"] }}\n'
    return text


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
    """Milliseconds of the event loop's thread for a request, without the share of an idle daemon.

    A request of an unknown sender that seems too costly is measured again: the daemon may have had other work.
    """
    taken = _cost(server, attack, keys, idle)
    for _ in range(ATTEMPTS - 1):
        if taken <= MOST or attack.public:
            break
        taken = min(taken, _cost(server, attack, keys, idle))
    return taken


def _cost(server: Server, attack: Attack, keys: Keys, idle: float) -> float:
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


@contextlib.contextmanager
def started(kind: str, store: str) -> Iterator[Server]:
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
        url = stack.enter_context(store_url(store))
        with on_core(cores[0]):
            server = stack.enter_context(ingestd(folder, config(kind, url)))
        with on_core(cores[-1]):
            yield server


def beside(server: Server, attack: Attack, keys: Keys, connections: int, seconds: float) -> tuple[str, bool]:
    """A cell with the visitors' median, its ratio to their median without the attack, and their refused events.

    Returns also whether the goal is missed. A median that seems too long is measured again: the machine may have been
    busy.
    """
    for attempt in range(ATTEMPTS):
        alone = visit(server.port, PUBLIC, seconds)
        with attacking(server.port, attack, keys, connections):
            during = visit(server.port, PUBLIC, seconds)
        server.finish_batches()
        ratio = during.median / alone.median
        if during.refused or ratio <= MOST_TIMES or attempt == ATTEMPTS - 1:
            break
    cell = f"{during.median:7.1f}{ratio:5.1f}{during.refused:5}"
    return cell, during.refused > 0 or ratio > MOST_TIMES


def measure(server: Server, attacks: Sequence[Attack], seconds: float) -> list[str]:
    """Print a line for each attack. Returns the goals that were missed."""
    idle = idle_share(server)
    print(f"  the costs are without the work of an idle daemon, {idle * 1000:.1f} ms a second")
    print("  visitors beside a number of connections: their median in ms, its ratio to that without, refused events")
    crowds = "".join(f"{number:>17}" for number in CROWDS)
    print(f"  {'':42}{'loop ms':>8}{'held ms':>9}{crowds}")
    wrong = []
    keys = iter([Keys(PUBLIC, each) for each in SERVER_KEYS])
    for attack in attacks:
        taken = cost(server, attack, next(keys), idle)
        # A request cannot hold the loop for longer than the loop works on it.
        held = min(taken, hold(server, attack, next(keys)))
        if taken > MOST and not attack.public:
            wrong.append(f"{attack.name}: more than {MOST:g} ms")
        print(f"  {attack.name:42}{taken:8.2f}{held:9.2f}", end="")
        beside_keys = next(keys)
        for connections in CROWDS[:1] if attack.name in LOAD else CROWDS:
            cell, is_missed = beside(server, attack, beside_keys, connections, seconds)
            print(cell, end="", flush=True)
            if is_missed:
                wrong.append(f"{attack.name}, {connections} connections: visitors noticed it")
        print(flush=True)
    return wrong


def main() -> int:
    parser = parser_of_pairs(__doc__)
    parser.add_argument("--seconds", type=float, default=0.8, help="time for which visitors are measured (default 0.8)")
    parser.add_argument("--only", default="", help="only attacks whose name contains this text")
    arguments = parser.parse_args()
    attacks = [attack for attack in ATTACKS if arguments.only in attack.name]
    if not attacks:
        parser.error(f"--only {arguments.only}: no attack has such a name")
    wrong = []
    for kind, store in pairs(arguments):
        begun = time.monotonic()
        print(f"server {kind}, store {store}")
        with started(kind, store) as server:
            wrong += [f"{kind}, {store}: {each}" for each in measure(server, attacks, arguments.seconds)]
        print(f"  {time.monotonic() - begun:.0f} s")
    for each in wrong:
        print(f"missed: {each}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
