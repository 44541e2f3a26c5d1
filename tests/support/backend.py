"""A backend of a shop: programs that send events with the clients, and the daemon that they send to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .daemon import Daemon, Shop
from .ports import free_port

__all__ = ["COMMANDS", "FLUSH", "PATIENCE", "WITHOUT_EXTENSIONS", "Backend", "Call", "view"]

PROGRAMS = Path(__file__).parent / "backend_programs"
COMMANDS = {"python": [sys.executable, "calls.py"], "node": ["node", "calls.mjs"], "php": ["php", "calls.php"]}
WITHOUT_EXTENSIONS = ["php", "-n", "calls.php"]
PATIENCE = 120.0
FLUSH = ["flush", 30]

Call = list[Any]


def view(number: int, **fields: Any) -> Call:
    return ["track", "Page View", {"number": number}, {"anonymousId": f"v-{number % 7}", **fields}]


class Backend:
    """A shop with its daemon on one address, and programs that send with one folder."""

    def __init__(self, shop: Shop, command: Sequence[str], **options: Any) -> None:
        self.shop = shop
        self.host = f"http://127.0.0.1:{free_port()}"
        self.queue = shop.folder / "queue"
        self.environment: Mapping[str, str] = {}
        self._command = command
        self._options = {"most": 100_000, "timeout": 10, **options}
        self._calls = shop.folder / "calls"

    def daemon(self) -> Daemon:
        return Daemon(self.shop.config, arguments=("--set", f'http.listen="{self.host.removeprefix("http://")}"'))

    @contextmanager
    def program(self, calls: list[Call], *, secret: str = "", **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A program that makes the calls with a client of these options and ends."""
        self._calls.unlink(missing_ok=True)  # another program may still read it
        self._calls.write_text("".join(f"{json.dumps(call)}\n" for call in calls))
        *program, file = map(str, self._command)
        key = self.shop.server
        given = json.dumps({**self._options, **options})
        arguments: list[str | Path] = [self.host, key.id, secret or key.secret, self.queue, given]
        with (
            self._calls.open() as read,
            (self.shop.folder / "printed").open("wb") as printed,  # a pipe could be full while the test waits
            (self.shop.folder / "errors").open("ab") as errors,
            subprocess.Popen(
                [*program, PROGRAMS / file, *arguments], stdin=read, stdout=printed, stderr=errors,
                env={**os.environ, **self.environment},
            ) as process,
        ):  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def run(self, calls: list[Call], *, secret: str = "", **options: Any) -> list[Any]:
        """The results of the calls, and what else the program has printed."""
        with self.program(calls, secret=secret, **options) as process:
            assert process.wait(PATIENCE) == 0, self.errors()
        return self.results()

    def results(self) -> list[Any]:
        """What the last program has printed, without an unfinished line."""
        *lines, _ = (self.shop.folder / "printed").read_text().split("\n")
        return [json.loads(line) for line in lines]

    def errors(self) -> str:
        return (self.shop.folder / "errors").read_text()

    def waiting(self) -> int:
        return len([*self.queue.glob("*.json")])

    def release(self) -> None:
        """Events that are held may be sent at once."""
        for path in self.queue.glob("*.json"):
            os.utime(path)
        (self.queue / "pause").unlink(missing_ok=True)
