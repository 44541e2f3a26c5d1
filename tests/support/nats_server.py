"""A real NATS server for a test: JetStream on a free port, with separate data. It is killed at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from .ports import free_port
from .signals import send_signal

__all__ = ["NatsServer", "nats_server"]

_READING = ConsumerConfig(ack_policy=AckPolicy.NONE)
_T = TypeVar("_T")


class NatsServer:
    """`settings` are written unchanged to the configuration file. JetStream is configured unless `jetstream=False`."""

    def __init__(self, folder: Path, settings: str = "", *, jetstream: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.login = ""
        """The credentials of a URL with all permissions, such as `user:password@`."""
        self._jetstream = jetstream
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(settings)

    @property
    def url(self) -> str:
        return f"nats://{self.login}127.0.0.1:{self.port}"

    def configure(self, settings: str) -> None:
        """Writes other settings, which apply from the next start."""
        lines = [f"listen: 127.0.0.1:{self.port}", settings]
        if self._jetstream:
            lines.append(f"jetstream {{ store_dir: {json.dumps(str(self.folder))} }}")
        (self.folder / "nats.conf").write_text("\n".join(lines))

    def start(self) -> None:
        program = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program is not None, "nats-server is not installed: make test does it"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--config", str(self.folder / "nats.conf")], stdout=log, stderr=log
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while not self._is_ready():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        # The server starts to listen after it has read JetStream's data.
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal: SIGSTOP suspends the server, SIGCONT resumes it, and SIGHUP reloads its configuration."""
        assert self._process is not None
        send_signal(self._process, number)

    def stop(self) -> None:
        """Sends SIGTERM and waits for the end."""
        self.signal(signal.SIGTERM)
        self._end()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.wait(20)
        self._process = None

    async def do(self, work: Callable[[JetStreamContext], Awaitable[_T]]) -> _T:
        """Runs `work` with a new connection."""
        client = Client()
        await client.connect(self.url, connect_timeout=5)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    async def messages(self, stream: str) -> list[tuple[str, dict[str, str], bytes]]:
        """All messages of a stream in order: subject, headers and body."""

        async def read(jetstream: JetStreamContext) -> list[tuple[str, dict[str, str], bytes]]:
            count = (await jetstream.stream_info(stream)).state.messages
            found: list[tuple[str, dict[str, str], bytes]] = []
            if count:  # to ask for each message takes three times the CPU time
                subscription = await jetstream.pull_subscribe("", stream=stream, config=_READING)
                while len(found) < count:
                    some = await subscription.fetch(min(count - len(found), 500), 20)
                    found += [(message.subject, message.headers or {}, message.data) for message in some]
            return found

        return await self.do(read)

    async def records(self, stream: str) -> list[Any]:
        """The bodies of all messages, decoded."""
        return [json.loads(body) for _, _, body in await self.messages(stream)]


@contextmanager
def nats_server(folder: Path, settings: str = "", *, jetstream: bool = True, login: str = "") -> Iterator[NatsServer]:
    server = NatsServer(folder, settings, jetstream=jetstream)
    server.login = login
    try:
        server.start()
        yield server
    finally:
        server.kill()
