"""A server between clients and a daemon: a proxy that answers for the daemon, or spoils the answer."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from .daemon import Daemon

__all__ = ["Drip", "LyingServer", "answer", "lying_server"]


@dataclass(frozen=True)
class Drip:
    """An answer whose bytes come one by one, without an end."""

    beginning: bytes


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class LyingServer:
    """Gives each of `answers` to one request. It asks the daemon in place of None, and when there are no more."""

    port: int
    daemon: Daemon | None
    tls: ssl.SSLContext | None
    answers: list[bytes | Drip | Callable[[], bytes] | None] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    """Their times, by time.monotonic()."""

    def serve(self, accepted: socket.socket) -> None:
        # A client may give up before the answer, or refuse the certificate.
        with suppress(OSError), self.tls.wrap_socket(accepted, server_side=True) if self.tls else accepted as client:
            read = client.makefile("rb")
            line, *lines = iter(read.readline, b"\r\n")
            fields = dict(each.decode().rstrip().split(": ", 1) for each in lines)
            headers = {name.lower(): value for name, value in fields.items()}
            body = read.read(int(headers["content-length"]))
            self.requests.append(time.monotonic())
            told = self.answers.pop(0) if self.answers else None
            if told is not None:
                self._give(client, told)
            elif self.daemon is not None:
                passed = {name: headers[name] for name in ("authorization", "x-signature")}
                reply = self.daemon.request("POST", line.decode().split()[1], body, passed)
                client.sendall(answer(reply.status, reply.body))

    def _give(self, client: socket.socket, told: bytes | Drip | Callable[[], bytes]) -> None:
        if isinstance(told, Drip):
            client.sendall(told.beginning)
            while True:
                time.sleep(0.1)
                client.sendall(b"x")
        client.sendall(told if isinstance(told, bytes) else told())


@contextmanager
def lying_server(daemon: Daemon | None = None, tls: ssl.SSLContext | None = None) -> Iterator[LyingServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = LyingServer(listener.getsockname()[1], daemon, tls)

        def accept() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    accepted, _ = listener.accept()
                    threading.Thread(target=server.serve, args=(accepted,), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
