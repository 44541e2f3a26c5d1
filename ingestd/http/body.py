"""The body of a request: the pieces in which it comes, its limits and its Content-Encoding."""

from __future__ import annotations

import zlib

from ingestd.api.errors import BadRequest, TooLarge, UnsupportedEncoding

from .client_connection import Client

__all__ = ["MOST_BODY", "ReceivedBody", "decode_body", "too_large"]

MOST_BODY = 1 << 62
"""Bytes that a server takes as a body. An exchange keeps the real limit, since a server would refuse without CORS."""

_GZIP = 16 + zlib.MAX_WBITS
_MAGIC = b"\x1f\x8b"  # the first bytes of each member
_FIRST_STEP = 256  # bytes: a small member fits
_MEMBERS = 200  # members that any body may have: a millisecond is for a request whose sender is not known yet
_BYTES_OF_MEMBER = 2048  # bytes of a body that allow one more: a member takes more than a microsecond

_MOST_PIECES = 64
_SMALL_PIECE = 512  # bytes, on average


class ReceivedBody:
    """The body of a client's request as it arrives. A body of more than `limit` bytes is counted and not kept.

    `encoding` is its Content-Encoding. `size` has the bytes that have come.
    """

    __slots__ = ("_chunks", "_client", "_kept", "_limit", "encoding", "size")

    def __init__(self, client: Client, limit: int, encoding: str) -> None:
        self._client = client
        self._limit = limit
        self.encoding = encoding
        self.size = 0
        self._chunks: list[bytes] = []
        self._kept = 0
        """Bytes that count as buffered until the pipeline has answered, even if the client disconnects."""

    @property
    def is_too_large(self) -> bool:
        return self.size > self._limit

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._limit:
            self._client.release(len(chunk))
            self.drop()
            return
        self._chunks.append(chunk)
        # Kept in pieces of few bytes, a body would take thirty times its size.
        if len(self._chunks) > _MOST_PIECES and self.size < len(self._chunks) * _SMALL_PIECE:
            self._chunks = [b"".join(self._chunks)]

    def drop(self) -> None:
        """Keep nothing of what has come, and stop counting it."""
        self._client.release(sum(map(len, self._chunks)))
        self._chunks = []

    def hand_over(self) -> None:
        """Count the body for the request instead of its connection, until `done`."""
        self._kept = self.size
        self._client.connections.hand_over(self._client, self.size)

    def done(self) -> None:
        """The request is answered."""
        self._client.connections.done_with(self._kept)
        self._chunks = []

    # Called for a `Request`

    def decode(self, most: int | None = None) -> bytes:
        if most is not None and self.size > most:
            raise too_large(most)  # before the chunks are joined, which takes two milliseconds for 4 MiB
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return decode_body(body, self.encoding, self._limit if most is None else min(most, self._limit))

    def free(self, content: bytes) -> None:
        more = len(content) - self.size
        if more > 0:
            self._client.connections.unpacked(more)
            self._kept += more
        self._chunks = []


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo a Content-Encoding. Decompression stops beyond `limit` bytes.

    A gzip body is one member or several, with nothing before, between or behind them (RFC 1952, 2.2). The zeros that
    pad a file are refused too. Raises `UnsupportedEncoding`, `TooLarge`, and `BadRequest` for an invalid gzip body.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name not in {"gzip", "x-gzip"}:
        raise UnsupportedEncoding("The Content-Encoding must be gzip or identity.")
    try:
        return _gunzip(body, limit)
    except zlib.error as error:
        raise _invalid("The body is not valid gzip.") from error


def _gunzip(body: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(_GZIP)
    decoded = decoder.decompress(body, limit + 1)
    if len(decoded) > limit:
        raise too_large(limit)
    if decoder.eof and decoder.unused_data:
        return decoded + _further_members(decoder.unused_data, limit - len(decoded), limit)
    if not decoder.eof:
        raise _invalid("The gzip body ends too early.")
    return decoded


def _further_members(data: bytes, room: int, limit: int) -> bytes:
    """The content of the members behind the first one, at most `room` bytes.

    A decoder copies all input behind the end of its member. So it gets little input at first, and twice as much each
    time. The cost of thousands of small members then depends on their number and size alone.
    """
    view = memoryview(data)
    pieces = []
    left = _MEMBERS + len(data) // _BYTES_OF_MEMBER
    while view:
        left -= 1
        if left < 0:
            raise _invalid("The gzip body has too many members.")
        if bytes(view[:2]) != _MAGIC[: len(view)]:
            raise _invalid("The gzip body has bytes after its end.")
        decoder = zlib.decompressobj(_GZIP)
        step = _FIRST_STEP
        while not decoder.eof:
            if not view:
                raise _invalid("The gzip body ends too early.")
            piece = decoder.decompress(view[:step], room + 1)
            room -= len(piece)
            if room < 0:
                raise too_large(limit)
            pieces.append(piece)
            view = view[min(step, len(view)) - len(decoder.unused_data) :]
            step *= 2
    return b"".join(pieces)


def _invalid(message: str) -> BadRequest:
    return BadRequest(message, code="invalid_encoding")
