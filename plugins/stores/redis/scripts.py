"""The scripts for Redis, each put together of its files, and what batch.lua answers to the operations of a batch."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec
from redis.exceptions import ResponseError

__all__ = ["BATCH", "PAGE", "decode_answers"]


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


_PIECES = _read("pieces.lua")

BATCH = _PIECES + _read("batch.lua").replace(b"--include upkeep.lua\n", _read("upkeep.lua"))
PAGE = _PIECES + _read("page.lua")

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
_decode = msgspec.msgpack.Decoder(list[tuple[bool, Any]]).decode
_decode_one = msgspec.msgpack.Decoder(tuple[bool, Any]).decode
_divide = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def decode_answers(answers: bytes) -> list[tuple[bool, Any]]:
    """For each operation: whether it was done, and its answer or the reason.

    A stored text that another program has damaged may not be UTF-8. Only the operations that read it fail then; one
    operation may read for several events. Raises
    `ResponseError` if the answers cannot even be told apart.
    """
    try:
        return _decode(answers)
    except _UNREADABLE:
        return _decode_each(answers)


def _decode_each(answers: bytes) -> list[tuple[bool, Any]]:
    try:
        divided = _divide(answers)
    except _UNREADABLE as error:
        raise ResponseError(f"the answer of the script cannot be read: {error}") from error
    found: list[tuple[bool, Any]] = []
    for answer in divided:
        try:
            found.append(_decode_one(answer))
        except _UNREADABLE as error:
            found.append((False, f"the stored data cannot be read: {error}"))
    return found
