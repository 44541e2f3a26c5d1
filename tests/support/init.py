"""A stand-in for PID 1: it passes listening sockets, hears what it is told, and minds the watchdog, as systemd does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .clients import wait_until
from .daemon import INGESTD, PATIENCE

__all__ = ["NAMES", "Init", "listener"]

NAMES = ("ingestd", "ingestd-ops")

# What systemd does between fork and exec: the sockets from 3 on, and variables that name the process.
_LAUNCH = """
import fcntl, os, sys
count = int(sys.argv[1])
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[2 : 2 + count]]
for place, number in enumerate(aside, start=3):
    os.dup2(number, place)
    os.close(number)
for name in ("LISTEN_PID", "WATCHDOG_PID"):
    if os.environ.get(name) == "own":
        os.environ[name] = str(os.getpid())
os.execv(sys.argv[2 + count], sys.argv[2 + count :])
"""


def listener() -> socket.socket:
    """A socket that listens on a free port."""
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


class Init:
    """`ingestd serve` below a supervisor, started again when it fails, is killed or is silent for too long.

    `sockets` are passed with these names; `watchdog` is in seconds. Messages are kept as the lines of each.
    """

    def __init__(
        self,
        config: Path,
        *arguments: str,
        sockets: Sequence[tuple[str, socket.socket]] = (),
        watchdog: float | None = None,
        environment: Mapping[str, str] | None = None,
        abstract: bool = False,
    ) -> None:
        self.messages: list[list[str]] = []
        self.ends: list[int] = []
        """The exit codes of the processes that have ended; of one that a signal ended, minus its number."""
        self.starved = 0
        """How many processes were killed because they were silent."""
        self._command = [INGESTD, "serve", *arguments, "--config", str(config)]
        self._sockets = [sock for _, sock in sockets]
        self._watchdog = watchdog
        self._log = config.with_name("init.log")
        place = f"\0ingestd-test-{os.urandom(8).hex()}" if abstract else str(config.with_name("notify"))
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(place)
        self._told.settimeout(0.02)
        self._environment = {**os.environ, "NOTIFY_SOCKET": place.replace("\0", "@"), "PYTHONFAULTHANDLER": "1"}
        if sockets:
            self._environment |= {
                "LISTEN_PID": "own",
                "LISTEN_FDS": str(len(sockets)),
                "LISTEN_FDNAMES": ":".join(name for name, _ in sockets),
            }
        if watchdog is not None:
            self._environment |= {"WATCHDOG_PID": "own", "WATCHDOG_USEC": str(round(watchdog * 1_000_000))}
        self._environment |= environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._closing = threading.Event()
        self._minding = threading.Thread(target=self._mind)

    def __enter__(self) -> Init:
        self._minding.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._wanted = False
        self._closing.set()
        self._minding.join(PATIENCE)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)
        self._told.close()

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def start(self) -> None:
        """Start it, and return when it is ready."""
        already = self.count("READY=1")
        self._wanted = True
        ended = len(self.ends)
        self._spawn()
        self.wait_until(lambda: self.count("READY=1") > already or len(self.ends) > ended)
        assert self.count("READY=1") > already, f"exit {self.ends[-1]}:\n{self.log}"

    def run(self) -> int:
        """Start it, and wait for it to end by itself; returns the exit code."""
        ended = len(self.ends)
        self._spawn()
        self.wait_until(lambda: len(self.ends) > ended)
        return self.ends[-1]

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        ended = len(self.ends)
        self._wanted = False
        self._process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: len(self.ends) > ended)
        return self.ends[-1]

    def count(self, line: str) -> int:
        """How often it was told."""
        return sum(line in message for message in self.messages)

    def told(self, name: str) -> list[str]:
        """The values it was told of this variable, in order."""
        lines = [line for message in self.messages for line in message]
        return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        try:
            wait_until(condition)
        except AssertionError as error:
            error.add_note(f"told: {self.messages}\nended: {self.ends}\nits log:\n{self.log}")
            raise

    def _spawn(self) -> None:
        numbers = [sock.fileno() for sock in self._sockets]
        launch = [sys.executable, "-c", _LAUNCH, str(len(numbers)), *map(str, numbers)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launch, *self._command], env=self._environment, pass_fds=numbers, stderr=log
            )

    def _mind(self) -> None:
        fed: float | None = None  # by time.monotonic(), from READY=1 to STOPPING=1
        while not self._closing.is_set():
            try:
                message = self._told.recv(65536).decode().split("\n")
            except TimeoutError:
                message = []
            if message:
                self.messages.append(message)
                if "STOPPING=1" in message:
                    fed = None
                elif "READY=1" in message or (fed is not None and "WATCHDOG=1" in message):
                    fed = time.monotonic()
            process = self._process
            if process is None:
                continue
            if fed is not None and self._watchdog is not None and time.monotonic() - fed > self._watchdog:
                fed = None
                self.starved += 1
                process.send_signal(signal.SIGABRT)
            if process.poll() is not None:
                fed, self._process = None, None
                self.ends.append(process.returncode)
                if self._wanted and process.returncode not in {0, os.EX_CONFIG}:
                    self._spawn()
