"""The body of a request: what of it is kept while it arrives, and what it is after decoding."""

from __future__ import annotations

import zlib

from ingestd.api.errors import BadRequest, TooLarge, UnsupportedEncoding

__all__ = ["decode_body", "most_chunks", "too_large"]

_GZIP = 16 + zlib.MAX_WBITS
_MAGIC = b"\x1f\x8b"  # what each member begins with
_FIRST_STEP = 256  # bytes: a small member fits
_MEMBERS = 1000  # of any body,
_BYTES_OF_MEMBER = 2048  # and one more for each so many bytes that were sent: a member takes more than a microsecond


def most_chunks(size: int) -> int:
    """How many chunks so many bytes may come in: each takes time, and a body of one-byte chunks would take seconds."""
    return 2048 + size // 4096


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo a Content-Encoding, bounded: no more than `limit` bytes are ever made.

    A gzip body is one member or several, with nothing before, between or behind them (RFC 1952, 2.2): zeros that pad
    a file are refused. Raises `UnsupportedEncoding`, `BadRequest` for what is not gzip, `TooLarge`.
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
    """What the members behind the first one hold, in `room` bytes at most.

    A decoder copies all that it is given behind the end of its member. So it is given little at first, and twice as
    much each time: thousands of small members then cost no more than their number and size.
    """
    view = memoryview(data)
    pieces = []
    left = _MEMBERS + len(data) // _BYTES_OF_MEMBER
    while view:
        left -= 1
        if left < 0:
            raise _invalid("The gzip body has too many members.")
        if bytes(view[:2]) != _MAGIC[: len(view)]:
            raise _invalid("The gzip body goes on after its end.")
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
