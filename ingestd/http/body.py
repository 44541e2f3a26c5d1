"""The body of a request: its limits and its Content-Encoding."""

from __future__ import annotations

import zlib

from ingestd.api.errors import BadRequest, TooLarge, UnsupportedEncoding

__all__ = ["MOST_BODY", "decode_body", "too_large"]

MOST_BODY = 1 << 62
"""Bytes that a server takes as a body. An exchange keeps the real limit, since a server would refuse without CORS."""

_GZIP = 16 + zlib.MAX_WBITS
_MAGIC = b"\x1f\x8b"  # the first bytes of each member
_FIRST_STEP = 256  # bytes: a small member fits
_MEMBERS = 200  # members that any body may have: a millisecond is for a request whose sender is not known yet
_BYTES_OF_MEMBER = 2048  # bytes of a body that allow one more: a member takes more than a microsecond


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
