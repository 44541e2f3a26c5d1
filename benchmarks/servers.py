"""Servers to measure, each on a separate core, and the keys of their callers."""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from typing import Any

from tests.support.redis_server import redis_server

__all__ = [
    "BARE", "BASE_PATH", "CONFIG", "INGESTD", "Server", "bare", "create_key", "ingestd", "on_core", "pairs",
    "parser_of_pairs", "redis_url", "store_url",
]  # fmt: skip

HERE = Path(__file__).parent
INGESTD = str(Path(sys.executable).with_name("ingestd"))
BARE = ("handler", "fast")
"""The servers of bare.py."""
BASE_PATH = "/api/v1/analytics"

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
        """CPU time of all its threads, in user mode and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, figure: str = "VmRSS") -> int:
        """Resident bytes: at present, or at their highest with `VmHWM`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(f"{figure}:")[2].split()[0]) * 1024

    def post(self, path: str, body: bytes, key: str) -> bytes:
        """The answer to a request, which must be a success."""
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, body, {"authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request) as answer:
            read: bytes = answer.read()
        return read

    def settle(self) -> None:
        """Wait until sinks and other consumers have caught up, so that they do no work in another server's round."""
        while self.ops_port is not None and {*self._metric("ingestd_consumer_pending")} != {0.0}:
            time.sleep(0.05)

    def finish_batches(self) -> None:
        """Wait until no batch is in progress or waits for its turn."""
        while any(self._metric("ingestd_waiting_batches")):
            time.sleep(0.05)

    def know_what_is_absent(self) -> None:
        """Wait until the filter of the SQLite file is made, which saves looking for absent keys."""
        while not all(self._metric("ingestd_sqlite_filter_bytes")):
            time.sleep(0.5)

    def _metric(self, name: str) -> list[float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ops_port}/metrics") as answer:
            return [
                float(value)
                for value in re.findall(rf"^{name}(?:\{{.*\}})? (.*)$", answer.read().decode(), re.MULTILINE)
            ]


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that start meanwhile stay on that core."""
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


SERVERS = ("fast", "tornado")
STORES = ("SQLite", "Redis")


def parser_of_pairs(description: str | None) -> argparse.ArgumentParser:
    """A parser of the HTTP servers and stores to measure."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", choices=SERVERS, help="repeatable (default: all)")
    parser.add_argument("--store", action="append", choices=STORES, help="repeatable (default: all)")
    return parser


def pairs(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each chosen HTTP server with each chosen store."""
    return itertools.product(arguments.server or SERVERS, arguments.store or STORES)


@contextlib.contextmanager
def store_url(store: str) -> Iterator[str]:
    """The URL of a new store, which is one of `STORES`."""
    if store == "SQLite":
        yield "sqlite:ingestd.db"
    else:
        with redis_url() as url:
            yield url


@contextlib.contextmanager
def redis_url() -> Iterator[str]:
    """The URL of a new Redis, which shares a core with the load generator, not with the daemons."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
        with on_core(max(os.sched_getaffinity(0))):
            server = stack.enter_context(redis_server(folder, {"appendfsync": "everysec"}))
        yield server.url


@contextlib.contextmanager
def bare(kind: str, name: str) -> Iterator[Server]:
    with running(sys.executable, str(HERE / "bare.py"), kind, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Server(name, process.pid, int(process.stdout.readline()))


@contextlib.contextmanager
def ingestd(folder: Path, config_text: str = CONFIG, command: str = INGESTD, name: str = "ingestd") -> Iterator[Server]:
    (folder / "ingestd.toml").write_text(config_text)
    log = folder / "log"
    config = ["--config", str(folder / "ingestd.toml")]
    with log.open("wb") as stderr, running(command, "serve", *config, stderr=stderr) as process:
        while "ready: " not in (text := log.read_text()):
            if process.poll() is not None:
                sys.exit(f"ingestd did not start:\n{text}")
            time.sleep(0.05)
        port, ops = (re.search(rf"listening for {who} on .*:(\d+)", text) for who in ("events", "operators"))
        assert port is not None
        assert ops is not None
        yield Server(name, process.pid, int(port[1]), int(ops[1]))


def create_key(folder: Path, command: str = INGESTD) -> str:
    """A new public key of the daemon whose configuration is in the folder."""
    create = ["keys", "create", "--kind", "public", "--tenant", "bench", "--json"]
    made = subprocess.check_output([command, *create, "--config", str(folder / "ingestd.toml")])
    key: str = json.loads(made)["id"]
    return key
