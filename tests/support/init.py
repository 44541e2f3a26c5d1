"""A stand-in for PID 1 that, like systemd, passes listening sockets, receives notifications and runs a watchdog."""

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
from .daemon import PATIENCE
from .forked import INGESTD

__all__ = ["NAMES", "Init", "listener"]

NAMES = ("ingestd", "ingestd-ops")

# systemd's work between fork and exec: sockets as descriptors from 3, and variables that name the process.
_LAUNCH = """
import fcntl, os, sys
count = int(sys.argv[1])
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[2 : 2 + count]]
for target, number in enumerate(aside, start=3):
    os.dup2(number, target)
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
    """`ingestd serve` with a supervisor that restarts it when it fails, is killed or is silent for too long.

    `sockets` are passed with their names. `watchdog` is in seconds. `messages` has the lines of each notification.
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
        """The exit codes of ended processes. After a signal it is the negative number of the signal."""
        self.starved = 0
        """The number of processes killed because they were silent."""
        self._command = [INGESTD, "serve", *arguments, "--config", str(config)]
        self._sockets = [sock for _, sock in sockets]
        self._watchdog = watchdog
        self._log = config.with_name("init.log")
        address = f"\0ingestd-test-{os.urandom(8).hex()}" if abstract else str(config.with_name("notify"))
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(address)
        self._told.settimeout(0.02)
        self._environment = {**os.environ, "NOTIFY_SOCKET": address.replace("\0", "@"), "PYTHONFAULTHANDLER": "1"}
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
        """Starts the daemon, and returns when it is ready."""
        already = self.count("READY=1")
        self._wanted = True
        ended = len(self.ends)
        self._spawn()
        self.wait_until(lambda: self.count("READY=1") > already or len(self.ends) > ended)
        assert self.count("READY=1") > already, f"exit {self.ends[-1]}:\n{self.log}"

    def begin(self) -> None:
        """Starts the daemon, which is not ready yet."""
        self._spawn()

    def run(self) -> int:
        """Starts the daemon, waits until it ends without a signal, and returns the exit code."""
        ended = len(self.ends)
        self._spawn()
        self.wait_until(lambda: len(self.ends) > ended)
        return self.ends[-1]

    def stop(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        assert self._process is not None
        ended = len(self.ends)
        self._wanted = False
        self._process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: len(self.ends) > ended)
        return self.ends[-1]

    def count(self, line: str) -> int:
        """The number of notifications with this line."""
        return sum(line in message for message in self.messages)

    def told(self, name: str) -> list[str]:
        """The notified values of this variable, in order."""
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
