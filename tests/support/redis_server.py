"""A real Redis server for a test: on a free port, with separate data. It is killed at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import redis

from .ports import free_port
from .signals import send_signal

__all__ = ["RedisServer", "make_certificate", "redis_server"]

_NONE: Mapping[str, str] = MappingProxyType({})


class RedisServer:
    """A durable server: appendonly yes, appendfsync always. `options` are those of redis-server."""

    def __init__(self, folder: Path, options: Mapping[str, str] = _NONE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        # Redis' own choice for the bus is a port of clients, one of which could take it first.
        bus = {"cluster-port": str(free_port())} if "cluster-enabled" in options else {}
        self.options = {"appendonly": "yes", "appendfsync": "always", "save": "", **bus, **options}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5)

    def start(self) -> None:
        program = shutil.which("redis-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program is not None, "redis-server is not installed: make test does it"
        options = [part for name, value in self.options.items() for part in (f"--{name}", *(value.split() or [""]))]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *options],
                stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    if self.client().ping():
                        return
            except (OSError, redis.RedisError):
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        send_signal(self._process, number)

    def kill(self) -> None:
        if self._process is not None:
            # The child that rewrites the file is killed too, because the folder is removed afterwards.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
            self._process = None


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for localhost. Returns the files of the key and the certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


@contextmanager
def redis_server(folder: Path, options: Mapping[str, str] = _NONE) -> Iterator[RedisServer]:
    server = RedisServer(folder, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
