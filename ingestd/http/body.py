"""The body of a request: what of it is kept while it arrives, and what it is after decoding."""

from __future__ import annotations

import zlib

from ..errors import BadRequest, TooLarge, UnsupportedEncoding

__all__ = ["decode_body", "most_chunks", "too_large"]

_GZIP = 16 + zlib.MAX_WBITS


def most_chunks(size: int) -> int:
    """How many chunks so many bytes may come in: each takes time, and a body of one-byte chunks would take seconds."""
    return 2048 + size // 4096


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo a Content-Encoding, bounded: no more than `limit` bytes are ever made.

    Raises `UnsupportedEncoding`, `BadRequest` for what is not gzip, `TooLarge`.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name not in {"gzip", "x-gzip"}:
        raise UnsupportedEncoding("The Content-Encoding must be gzip or identity.")
    decoder = zlib.decompressobj(_GZIP)
    try:
        decoded = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest("The body is not valid gzip.", code="invalid_encoding") from error
    if len(decoded) > limit:
        raise too_large(limit)
    if not decoder.eof or decoder.unused_data:
        what = "ends too early" if not decoder.eof else "goes on after its end"
        raise BadRequest(f"The gzip body {what}.", code="invalid_encoding")
    return decoded
