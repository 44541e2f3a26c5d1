"""ingestd beside a bare Tornado handler, under the same load, in rounds that take turns.

Each server has one core for itself and wrk has another. 64 connections of 1000 visitors send page views,
product views and orders of five products in turn. ingestd runs as installed: every event in SQLite with
synchronous=FULL before its answer, and a `jsonl` sink behind it, whose work counts as ingestd's CPU time.
Take the ratios: absolute figures are those of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
INGESTD = str(Path(sys.executable).with_name("ingestd"))
PATH = "/api/v1/analytics/track"
CONNECTIONS = 64
VISITORS = 1000

CONFIG = """\
[http]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[store]
url = "sqlite:ingestd.db"
[sinks.archive]
type = "jsonl"
path = "archive.jsonl"
"""


@dataclass(frozen=True)
class Server:
    name: str
    pid: int
    port: int
    ops_port: int | None = None

    def cpu_seconds(self) -> float:
        """Of all its threads, in and out of the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def settle(self) -> None:
        """Wait until sinks and other consumers have caught up, so that no work is done in another's round."""
        while self.ops_port is not None:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ops_port}/metrics") as answer:
                pending = re.findall(rb"^ingestd_consumer_pending\{.*\} (.*)$", answer.read(), re.MULTILINE)
            if {float(count) for count in pending} == {0.0}:
                return
            time.sleep(0.05)


def products(visitor: int, count: int) -> list[dict[str, Any]]:
    return [
        {"product_id": f"p-{visitor}-{n}", "sku": f"SKU-{1000 + n}", "name": f"Linen shirt no. {n}", "position": n,
         "category": "Clothing/Shirts", "url": f"https://shop.example/products/linen-shirt-{n}", "price": 39.9 + n,
         "image_url": f"https://img.shop.example/p/{visitor}/{n}.jpg", "quantity": 1 + n % 3}
        for n in range(count)
    ]  # fmt: skip


def bodies() -> Iterator[dict[str, Any]]:
    campaign = {"source": "newsletter", "medium": "email", "name": "autumn-sale"}
    for visitor in range(VISITORS):
        page = {"url": f"https://shop.example/c/shirts?page={visitor}&utm_source=newsletter", "title": "Linen shirts",
                "referrer": "https://www.search.example/?q=linen+shirts"}  # fmt: skip
        agent = {"userAgent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "locale": "de",
                 "timezone": "Europe/Berlin", "screen": {"width": 1920, "height": 1080, "density": 1},
                 "library": {"name": "shop.js", "version": "1.2.3"}}  # fmt: skip
        common = {"anonymousId": f"visitor-{visitor:08d}", "context": {"page": page, "campaign": campaign, **agent}}
        product = {**products(visitor, 1)[0], "currency": "EUR", "brand": "Example & Daughters"}
        order = {"order_id": f"o-{visitor}", "total": 247.5, "revenue": 210.0, "shipping": 4.9, "tax": 37.5,
                 "discount": 0, "coupon": "AUTUMN", "currency": "EUR", "products": products(visitor, 5)}  # fmt: skip
        yield {"key": "Page View", "data": {"title": "Linen shirts"}, **common}
        yield {"key": "Product Viewed", "data": product, **common}
        yield {"key": "Order Completed", "data": order, **common}


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile stays on that core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    yield
    os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def bare(kind: str) -> Iterator[Server]:
    with running(sys.executable, str(HERE / "bare.py"), kind, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Server(f"bare {kind}", process.pid, int(process.stdout.readline()))


@contextlib.contextmanager
def ingestd(folder: Path, config_text: str = CONFIG) -> Iterator[Server]:
    (folder / "ingestd.toml").write_text(config_text)
    log = folder / "log"
    config = ["--config", str(folder / "ingestd.toml")]
    with log.open("wb") as stderr, running(INGESTD, "serve", *config, stderr=stderr) as process:
        while "ready: " not in (text := log.read_text()):
            if process.poll() is not None:
                sys.exit(f"ingestd did not start:\n{text}")
            time.sleep(0.05)
        port, ops = (re.search(rf"listening for {who} on .*:(\d+)", text) for who in ("events", "operators"))
        assert port is not None
        assert ops is not None
        yield Server("ingestd", process.pid, int(port[1]), int(ops[1]))


def create_key(folder: Path) -> str:
    """A public key for the daemon whose configuration is in that folder."""
    create = ["keys", "create", "--kind", "public", "--tenant", "bench", "--json"]
    made = subprocess.check_output([INGESTD, *create, "--config", str(folder / "ingestd.toml")])
    key: str = json.loads(made)["id"]
    return key


def load(server: Server, folder: Path, key: str, seconds: float) -> dict[str, float]:
    """One round: requests a second, CPU µs a request, p50 and p99 in ms, failed requests."""
    cpu = server.cpu_seconds()
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "-s", str(HERE / "post.lua")]
    url = f"http://127.0.0.1:{server.port}{PATH}"
    printed = subprocess.run([*command, url, "--", str(folder / "bodies"), key], check=False, stdout=subprocess.PIPE)
    if printed.returncode:
        sys.exit(f"{server.name}: wrk failed; is the server still running?")
    server.settle()
    seen: dict[str, float] = json.loads(printed.stdout.splitlines()[-1])
    cpu = (server.cpu_seconds() - cpu) * 1e6 / max(1, seen["requests"])
    return {"req/s": seen["requests"] / seen["seconds"], "CPU µs": cpu,
            "p50 ms": seen["p50"], "p99 ms": seen["p99"], "failed": seen["failed"]}  # fmt: skip


def measure(folder: Path, rounds: int, seconds: int) -> dict[str, list[dict[str, float]]]:
    lines = [json.dumps(body) for body in bodies()]
    (folder / "bodies").write_text("\n".join(lines))
    cores = sorted(os.sched_getaffinity(0))
    print(f"{rounds} rounds of {seconds} s, {CONNECTIONS} connections, bodies of {mean(map(len, lines)):.0f} bytes")
    with contextlib.ExitStack() as stack:
        with on_core(cores[0]):
            servers = [stack.enter_context(each) for each in (bare("handler"), bare("delegate"), ingestd(folder))]
        key = create_key(folder)
        time.sleep(2)  # the time the daemon may take to know a new key
        results: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
        with on_core(cores[-1]):
            for server in servers:
                load(server, folder, key, 1)  # warms up, and every visitor is known
            for _ in range(rounds):
                for server in servers:
                    results[server.name].append(load(server, folder, key, seconds))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each server, at least 3 (default 5)")
    parser.add_argument("--seconds", type=int, default=8, help="length of a round (default 8)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every round and the medians here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as folder:
        results = measure(Path(folder), max(3, arguments.rounds), max(1, arguments.seconds))
    medians = {
        name: {what: median(each[what] for each in rounds) for what in rounds[0]} for name, rounds in results.items()
    }
    unit = medians["bare handler"]["req/s"]
    print(f"{'':14}{'req/s':>9}{'to bare':>9}{'CPU µs':>9}{'p50 ms':>9}{'p99 ms':>9}")
    for name, row in medians.items():
        row["to bare"] = row["req/s"] / unit
        print(f"{name:14}{row['req/s']:9.0f}{row['to bare']:9.2f}{row['CPU µs']:9.0f}"
              f"{row['p50 ms']:9.1f}{row['p99 ms']:9.1f}")  # fmt: skip
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"medians": medians, "rounds": results}, indent=2, ensure_ascii=False))
    failed = {name: sum(int(each["failed"]) for each in rounds) for name, rounds in results.items()}
    print("failed requests:", ", ".join(f"{name} {count}" for name, count in failed.items()))
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
