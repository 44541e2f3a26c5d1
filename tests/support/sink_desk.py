"""A shop with a sink that tests control, and methods to run `ingestd sinks` commands."""

from __future__ import annotations

import json
import os
import select
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .clients import wait_until
from .daemon import PATIENCE, Daemon, Shop, run_ingestd
from .forked import INGESTD, Command
from .told_sink import Told

__all__ = ["BOTH", "QUICK", "Desk", "delivered", "read_until"]

QUICK = 'timeout = "1s"\nretry = { initial = "10ms", max = "100ms" }'
BOTH = pytest.mark.parametrize("beside", [True, False], ids=["beside a daemon", "without a daemon"])


@dataclass
class Desk:
    """A shop with a sink `crm` that tests control, and methods to run commands."""

    folder: Path
    batch: int = 500
    tables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.crm = Told(self.folder)
        batch = f'batch = {{ max_wait = "0s", max_events = {self.batch} }}'
        tables = {
            # A stop need not wait long for a failing sink. There is no attribution for the same reason.
            "http": 'shutdown_timeout = "500ms"',
            "plugins": 'enabled = ["keys", "identity", "session", "sqlite"]',
            **self.crm.options(QUICK, batch),
            **self.tables,
        }
        self.shop = Shop(self.folder, tables)

    def send(self, daemon: Daemon, *numbers: int, visitor: str | None = None, key: str = "Page View") -> None:
        for number in numbers:
            body = {"key": key, "anonymousId": visitor or f"visitor-{number}", "data": {"number": number}}
            assert daemon.post("/track", body, self.shop.public.id).status == 200

    def run(self, *arguments: str) -> str:
        return self.shop.command("sinks", *arguments)

    def told(self, *arguments: str) -> Any:
        """The output of a command with `--json`, which must be one object."""
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = run_ingestd("sinks", *arguments, config=self.shop.config)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    def status(self) -> Any:
        return self.told("status", "crm")

    def dead(self) -> list[tuple[int, str]]:
        rows = map(json.loads, self.run("dead-letters", "list", "crm", "--json").splitlines())
        return [(row["number"], row["reason"]) for row in rows]

    def begin(self, *arguments: str, **further: Any) -> subprocess.Popen[str]:
        command = [INGESTD, "sinks", *arguments, "--config", str(self.shop.config)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **further}
        return Command(command, text=True, **pipes)


def delivered(desk: Desk, daemon: Daemon, *numbers: int) -> None:
    """Sends events with these numbers, and waits until the sinks have processed them."""
    desk.send(daemon, *numbers)
    wait_until(lambda: desk.shop.is_done("sink:crm", "sink:archive"))


def read_until(descriptor: int, end: bytes) -> str:
    shown = b""
    while not shown.endswith(end):
        assert select.select([descriptor], [], [], PATIENCE)[0], shown
        shown += os.read(descriptor, 4096)
    return shown.decode()
