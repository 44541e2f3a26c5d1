"""Requests to ingestd, with the standard library or with httpx."""

from __future__ import annotations

import http.client
import io
import json
import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from typing import Any
from urllib.parse import urlsplit

__all__ = ["MakeHttp", "NoAnswer", "Reply", "Transport"]

MakeHttp = Callable[[], Any]
"""Makes an `httpx.Client`."""

_PATH = "/api/v1/analytics/customer-events/batch"
_LARGEST = 4_000_000  # bytes of an answer; ingestd's are smaller


class NoAnswer(Exception):
    """Its text is the reason."""


@dataclass(frozen=True)
class Reply:
    status: int
    retry_after: str = ""
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is an error of ingestd itself, and not of a proxy."""
        return str(self.told.get("type")).startswith("urn:ingestd:")

    @property
    def results(self) -> list[dict[str, Any]]:
        """A result for each event; empty if a proxy has answered."""
        results = self.told.get("results")
        is_own = self.status == 200 and isinstance(results, list) and all(map(_is_result, results))
        return results if is_own else []  # type: ignore[return-value]  # it is a list

    @property
    def asks_for(self) -> float:
        """The seconds of `Retry-After`, which may be a date; 0 or less if it has none that is of use."""
        if self.retry_after.isdecimal():
            return float(self.retry_after[:9])
        with suppress(ValueError, OverflowError):
            if date := parsedate_tz(self.retry_after):
                return mktime_tz(date) - time.time()
        return 0.0


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("status") == 200 or isinstance(value.get("code"), str))


def _whole(pieces: Iterable[bytes], end: float = math.inf) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _LARGEST or time.monotonic() > end:
            raise NoAnswer("the answer is too large or too slow")
        yield piece


class Transport:
    """One connection, which is kept."""

    def __init__(self, host: str, timeout: float, make_http: MakeHttp | None) -> None:
        url = urlsplit(host)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError(f"{host!r} is no address such as https://events.example.com")
        self._timeout = timeout
        self._target = url.path.rstrip("/") + _PATH
        self._http = None
        if make_http is not None:
            self._target = f"{url.scheme}://{url.netloc}{self._target}"
            self._http = make_http()
            return
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.hostname, url.port, timeout=timeout)
        self._connection.response_class = partial(_response, timeout)  # type: ignore[assignment]  # it makes one

    def post(self, body: bytes, headers: dict[str, str]) -> Reply:
        """NoAnswer: there is none, or not within the timeout."""
        status, retry_after, content = self._exchange(body, headers)
        told: object = None
        with suppress(ValueError, RecursionError):
            told = json.loads(content)
        return Reply(status, retry_after, told if isinstance(told, dict) else {})

    def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        if self._http is not None:
            return self._with_httpx(self._http, body, headers)
        error: Exception | None = None
        # A connection that was kept may be closed meanwhile, so there are two tries.
        for _ in range(1 if self._connection.sock is None else 2):
            try:
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(self._timeout)
                self._connection.request("POST", self._target, body, headers)
                answer = self._connection.getresponse()
                content = b"".join(_whole(iter(partial(answer.read, 65536), b"")))
                if answer.length:
                    raise http.client.IncompleteRead(content, answer.length)
                return answer.status, answer.headers.get("Retry-After", ""), content
            except (OSError, http.client.HTTPException, NoAnswer) as caught:
                self._connection.close()
                error = caught
        raise NoAnswer(f"{type(error).__name__}: {error}")

    def _with_httpx(self, client: Any, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        import httpx  # only who uses it has it

        end = time.monotonic() + self._timeout
        try:
            with client.stream("POST", self._target, content=body, headers=headers, timeout=self._timeout) as answer:
                content = b"".join(_whole(answer.iter_bytes(), end))
                return answer.status_code, answer.headers.get("Retry-After", ""), content
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        (self._http or self._connection).close()


def _response(timeout: float, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Deadline(sock, timeout), **options)  # type: ignore[arg-type]  # it calls makefile


class _Deadline(io.RawIOBase):
    """Reads from a socket until the end of the timeout. Each of many small pieces would have a timeout of its own."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._socket = sock
        self._file = sock.makefile("rb", buffering=0)
        self._end = time.monotonic() + timeout

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(max(self._end - time.monotonic(), 0.001))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
