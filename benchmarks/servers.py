"""Servers to measure, each on a separate core, and the keys of their callers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CONFIG", "INGESTD", "Server", "bare", "create_key", "ingestd", "on_core"]

HERE = Path(__file__).parent
INGESTD = str(Path(sys.executable).with_name("ingestd"))

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


@contextlib.contextmanager
def bare(kind: str) -> Iterator[Server]:
    with running(sys.executable, str(HERE / "bare.py"), kind, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Server(f"bare {kind}", process.pid, int(process.stdout.readline()))


@contextlib.contextmanager
def ingestd(folder: Path, config_text: str = CONFIG, command: str = INGESTD) -> Iterator[Server]:
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
        yield Server("ingestd", process.pid, int(port[1]), int(ops[1]))


def create_key(folder: Path, command: str = INGESTD) -> str:
    """Make a public key for the daemon whose configuration is in the folder."""
    create = ["keys", "create", "--kind", "public", "--tenant", "bench", "--json"]
    made = subprocess.check_output([command, *create, "--config", str(folder / "ingestd.toml")])
    key: str = json.loads(made)["id"]
    return key
