"""HTTP over plain sockets for requests that HTTP libraries cannot send, and checks of the daemon meanwhile."""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from .clients import wait_until
from .daemon import BASE, PATIENCE, Daemon, Reply, Shop

__all__ = [
    "Client",
    "assert_refused",
    "assert_unharmed",
    "chunked",
    "counting",
    "event",
    "head",
    "memory",
    "outcomes",
    "post",
    "quiet",
    "talk",
    "talk_at_once",
]


def event(data: object = None, **fields: Any) -> bytes:
    """The body of a valid event."""
    return json.dumps({"key": "Page View", "anonymousId": "visitor", "data": data or {}, **fields}).encode()


def head(key: str, *lines: str | bytes, path: str = "/track") -> bytes:
    """The head of a request with its empty line. `lines` are more raw headers, as bytes or in ISO 8859-1."""
    own = [f"POST {BASE}{path} HTTP/1.1", "Host: shop", f"Authorization: Bearer {key}"]
    raw = [line if isinstance(line, bytes) else line.encode("latin-1") for line in [*own, *lines]]
    return b"\r\n".join([*raw, b"", b""])


def post(key: str, body: bytes, *lines: str | bytes, path: str = "/track") -> bytes:
    """A whole request."""
    return head(key, *lines, f"Content-Length: {len(body)}", path=path) + body


def chunked(*chunks: bytes) -> bytes:
    """A chunked body with these chunks and the last chunk."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


class Client:
    """One connection. The test fails if the daemon neither answers nor closes the connection within `PATIENCE`.

    `address` is the client's own.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(address, 0))
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def finish_sending(self) -> None:
        """Closes the sending half. Answers can still be read."""
        with suppress(OSError):  # the daemon may have closed the connection
            self.socket.shutdown(socket.SHUT_WR)

    def reply(self) -> Reply:
        """The next answer, which must be complete."""
        reply = self._take()
        while reply is None:
            assert self._receive(), f"closed before an answer, after {self._received!r}"
            reply = self._take()
        return reply

    def end(self) -> list[Reply]:
        """All further answers until the daemon closes the connection."""
        while self._receive():
            pass
        replies = list(iter(self._take, None))
        assert not self._received, f"half an answer: {self._received!r}"
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """Resets the connection, like a client that crashes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _receive(self) -> bool:
        try:
            chunk = self.socket.recv(65536)
        except ConnectionError:
            return False
        self._received += chunk
        return bool(chunk)

    def _take(self) -> Reply | None:
        start, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            return None
        first, *lines = start.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert len(headers) == len(lines), f"a header twice: {lines}"
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        self._received = rest[length:]
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        if status == "100":
            return self._take()
        return Reply(int(status), headers, rest[:length])

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def talk(port: int, data: bytes) -> list[Reply]:
    """Sends the data on a new connection, closes the sending half, and returns all answers."""
    with Client(port) as client:
        with suppress(ConnectionError):  # the daemon may have closed the connection; its answer can be read
            client.send(data)
        client.finish_sending()
        return client.end()


def talk_at_once(port: int, streams: Iterable[bytes]) -> list[list[Reply]]:
    """Like `talk` with many connections at the same time. Refusals may be held back for up to a second."""
    with ThreadPoolExecutor(100) as threads:
        return list(threads.map(partial(talk, port), streams))


def assert_refused(reply: Reply, status: int, code: str, *, closes: bool = True) -> None:
    """Checks the common form of errors. `closes` is whether the daemon closes the connection."""
    problem = reply.json()
    assert (reply.status, problem["status"], problem["code"]) == (status, status, code)
    assert problem["success"] is False
    assert problem["title"]
    assert problem["detail"]
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["access-control-allow-origin"] == "*"
    assert (reply.headers.get("connection") == "close") is closes
    if status == 503:
        assert int(reply.headers["retry-after"]) >= 1


def assert_unharmed(shop: Shop, daemon: Daemon, most_memory: int, *secrets: str) -> None:
    """Checks that the daemon still serves within its memory, without internal errors and without secrets in the log."""
    assert daemon.post("/track", event(), shop.public.id).status == 200
    assert daemon.post_signed(event(), shop.server).status == 200
    assert outcomes(daemon)["failed"] == 0
    assert memory(daemon.pid, "VmHWM") < most_memory
    daemon.read_log()
    log = "\n".join(daemon.log)
    assert "Traceback" not in log
    assert " ERROR " not in log
    for secret in (shop.public.id, shop.server.id, shop.server.secret, *secrets):
        assert secret not in log


def outcomes(daemon: Daemon) -> Counter[str]:
    """The number of requests by outcome, over all endpoints and keys."""
    counts: Counter[str] = Counter()
    for line in daemon.ops("/metrics").body.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("ingestd_events_total{", "ingestd_identifies_total{")):
            counts[name.split('outcome="')[1].split('"')[0]] += int(float(value))
    return counts


@contextmanager
def counting(daemon: Daemon, **expected: int) -> Iterator[None]:
    """Checks that the requests inside the block have exactly these outcomes."""
    before = outcomes(daemon)
    yield
    wanted = Counter({outcome: count for outcome, count in expected.items() if count})
    # A client may disconnect before its request is counted.
    wait_until(lambda: (outcomes(daemon) - before).total() >= wanted.total())
    counted = outcomes(daemon) - before
    assert counted == wanted, f"counted {counted}, not {wanted}"


def quiet(daemon: Daemon) -> None:
    """Waits until the daemon has processed all requests and has no connections."""
    wait_until(
        lambda: (
            daemon.metric("ingestd_http_connections") == daemon.metric("ingestd_waiting_events") == 0
            and daemon.metric("ingestd_http_buffered_bytes") == 0
        )
    )


def memory(pid: int, what: str) -> int:
    """The memory of a process in bytes: `VmRSS` is the present value, `VmHWM` the maximum."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(what)
