"""One round of requests by wrk, and its results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .servers import BASE_PATH, HERE, Server

__all__ = ["BATCH", "BODIES", "CONNECTIONS", "Load", "load", "write_bodies"]

BODIES = "bodies"
"""The file in a server's folder with the bodies to send, one on each line."""
CONNECTIONS = 64
BATCH = 100
"""Events of a batch."""


@dataclass(frozen=True)
class Load:
    """`batch`: events of a request. `pause`: milliseconds for which a connection waits before each request.

    `visitors`: number of visitors, in visits of `visit` events, `at_once` visits at a time; 0 uses the visitors of the
    bodies. `sent`: events sent in earlier rounds; this round continues after them.
    """

    connections: int = CONNECTIONS
    browser: bool = False
    batch: int = 1
    pause: int = 0
    visitors: int = 0
    visit: int = 1
    at_once: int = 10_000
    sent: int = 0

    @property
    def bodies(self) -> str:
        return BODIES if self.batch == 1 else f"{BODIES}-{self.batch}"

    @property
    def path(self) -> str:
        return f"{BASE_PATH}/batch" if self.batch > 1 else f"{BASE_PATH}/track"


def write_bodies(folder: Path, events: Sequence[dict[str, Any]]) -> None:
    """Write the bodies to send into a server's folder: those of single events, and of batches."""
    batches = [{"events": events[start : start + BATCH]} for start in range(0, len(events) - BATCH + 1, BATCH)]
    (folder / BODIES).write_text("\n".join(map(json.dumps, events)))
    (folder / f"{BODIES}-{BATCH}").write_text("\n".join(map(json.dumps, batches)))


def load(server: Server, folder: Path, key: str, seconds: float, what: Load = Load()) -> dict[str, float]:
    """Run one round: requests a second, CPU µs an event, p50 and p99 in ms, failed requests.

    `key` may be several keys, separated by commas; the bodies have them in turn. The CPU time includes the work of
    sinks and other consumers. They have finished when this returns.
    """
    cpu = server.cpu_seconds()
    # wrk counts an answer that comes after its timeout of two seconds as failed, even if it is a 200.
    command = ["wrk", "-t1", f"-c{what.connections}", f"-d{seconds:g}s", "--timeout", "30s"]
    command += ["-s", str(HERE / "post.lua")]
    arguments = [str(folder / what.bodies), key, "browser" if what.browser else "plain", str(what.pause)]
    arguments += map(str, (what.visitors, what.visit, what.at_once, what.sent))
    url = f"http://127.0.0.1:{server.port}{what.path}"
    printed = subprocess.run([*command, url, "--", *arguments], check=False, stdout=subprocess.PIPE)
    if printed.returncode:
        sys.exit(f"{server.name}: wrk failed; is the server still running?")
    server.settle()
    seen: dict[str, float] = json.loads(printed.stdout.splitlines()[-1])
    cpu = (server.cpu_seconds() - cpu) * 1e6 / max(1, seen["requests"] * what.batch)
    return {"req/s": seen["requests"] / seen["seconds"], "CPU µs": cpu,
            "p50 ms": seen["p50"], "p99 ms": seen["p99"], "failed": seen["failed"]}  # fmt: skip
