"""UUIDs. Random bits are read from the system in blocks, because each read is slow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count

__all__ = ["named_time_uuid", "named_uuid", "next_uuids", "random_uuid", "time_uuid"]

_BLOCK = 4096


def _digits() -> Iterator[str]:
    """Endless blocks of 128 random bits as hexadecimal digits, each used once."""
    while True:
        block = os.urandom(_BLOCK).hex()
        for start in range(0, 2 * _BLOCK, 32):
            yield block[start : start + 32]


_next_digits = _digits().__next__


def _begin_a_block() -> None:
    """Discard the random bits in a forked process, which would otherwise repeat the ids of its parent."""
    global _next_digits  # noqa: PLW0603 - a bound method is the fastest way to the next digits
    _next_digits = _digits().__next__


os.register_at_fork(after_in_child=_begin_a_block)

_OF_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_VARIANT = 0x8000_0000_0000_0000
_BELOW_VARIANT = 0x3FFF_FFFF_FFFF_FFFF
_LAST = 0xFFFF_FFFF


def time_uuid() -> str:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds, 12 bits of their fraction, 62 random bits. Later ids sort later."""
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    digits, head = _next_digits(), f"{milliseconds:012x}"
    return f"{head[:8]}-{head[8:]}-7{fraction:03x}-{_OF_VARIANT[digits[0]]}{digits[1:4]}-{digits[4:16]}"


def next_uuids(first: str) -> Iterator[str]:
    """An endless sequence of UUIDv7 from a first one, counting up its random bits. They sort in this order."""
    head, tail = first[:19], int(first[19:].replace("-", ""), 16)
    for number in count(tail >> 32):
        digits = f"{number << 32 & _BELOW_VARIANT | _VARIANT:016x}"
        middle = f"{head}{digits[:4]}-{digits[4:8]}"  # changes once in 2 ** 32 ids
        for last in range(max(tail - (number << 32), 0), _LAST + 1):
            yield f"{middle}{last:08x}"


def random_uuid() -> str:
    """A UUIDv4 (RFC 9562): 122 random bits."""
    digits = _next_digits()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_OF_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


def named_uuid(*parts: str) -> str:
    """A UUIDv8 (RFC 9562) from 122 bits of a digest of the parts. Equal parts give equal ids."""
    name = "".join(f"{len(part)}:{part}" for part in parts)
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    head, low = digest[:8].hex(), int.from_bytes(digest[8:], "big")
    tail = f"{low & _BELOW_VARIANT | _VARIANT:016x}"
    return f"{head[:8]}-{head[8:12]}-8{head[13:]}-{tail[:4]}-{tail[4:]}"


def named_time_uuid(at: int, *parts: str) -> str:
    """A UUIDv7 (RFC 9562) of a time in milliseconds. Its other bits are from a digest of the parts.

    So an event from a file has the same id each time. Equal times and parts give equal ids.
    """
    named, head = named_uuid(*parts), f"{at:012x}"
    return f"{head[:8]}-{head[8:]}-7{named[15:]}"
