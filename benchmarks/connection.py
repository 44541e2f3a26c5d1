"""A connection of a caller, and the addresses that callers claim to have."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

__all__ = ["CLOSED", "Connection", "client"]

CLOSED = 0
"""Stands for a status if the daemon has closed the connection, maybe during the request."""

_addresses = itertools.count(os.getpid() * 1000)


class Connection:
    """Sends one request at a time. If the server closes the connection, it is opened again."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        """`address` is the client's address."""
        self._port = port
        self._address = address
        self._socket = self._open()

    def _open(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._port), timeout=60, source_address=(self._address, 0))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def ask(self, request: bytes) -> int:
        """The status of the answer; `CLOSED` without an answer."""
        try:
            with contextlib.suppress(ConnectionError):  # the server may have answered and closed early
                self._socket.sendall(request)
            status, closes = self._answer(has_body=not request.startswith(b"HEAD "))
        except ConnectionError:
            status, closes = CLOSED, True
        if closes:
            self._socket.close()
            self._socket = self._open()
        return status

    def _answer(self, *, has_body: bool) -> tuple[int, bool]:
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        while has_body and len(body) < length:
            body += self._receive()
        return int(lines[0].split()[1]), "connection: close" in lines

    def _receive(self) -> bytes:
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionError
        return received

    def close(self) -> None:
        self._socket.close()


def client() -> str:
    number = next(_addresses)
    return f"X-Forwarded-For: 198.{18 + number // 65536 % 2}.{number // 256 % 256}.{number % 256}"
