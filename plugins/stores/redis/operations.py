"""The operations that a batch asks of Redis, and the callbacks that get their answers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import Failed

from .scripts import BATCH

__all__ = ["READS", "Asked", "Operation", "Then", "encode", "raw", "settle", "tell", "tell_both"]

_log = logging.getLogger("ingestd.redis")
_encode = msgspec.msgpack.Encoder().encode

Operation = list[Any]
"""The name and arguments of an operation in batch.lua."""

Then = Callable[[Any, Exception | None], None]
"""Called once, with the answer to an operation or with the error. It must not raise."""

READS = frozenset(name.decode() for name in re.findall(rb"^reads\.(\w+) =", BATCH, re.MULTILINE))
"""The names of operations that write nothing."""


class Asked(NamedTuple):
    """An operation that waits for its batch."""

    operation: msgspec.Raw
    then: Then
    weight: int
    writes: bool


def encode(asked: Any) -> msgspec.Raw:
    """An operation, or a part of one. Raises `Failed` if Redis can never store it."""
    try:
        return msgspec.Raw(_encode(asked))
    except (UnicodeEncodeError, OverflowError) as error:
        _log.error("one event could not be stored because of its content: %r", error)
        raise Failed("The event could not be stored.") from error


def raw(text: bytes) -> msgspec.Raw:
    """UTF-8 as a MessagePack string, without decoding it. Redis does not know MessagePack's binary type."""
    return msgspec.Raw(b"\xdb" + len(text).to_bytes(4, "big") + text)


def tell(then: Then, answer: Any, error: Exception | None) -> None:
    """Give an answer to its callback."""
    try:
        then(answer, error)
    except Exception:  # noqa: BLE001 - the other callers must get their answers too
        _log.exception("a callback of an answer failed")


def tell_both(first: Then, second: Then, answer: Any, error: Exception | None) -> None:
    """A callback, with two others as its first arguments."""
    tell(first, answer, error)
    tell(second, answer, error)


def settle(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    """A callback, with the future that awaits the answer as its first argument."""
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
        future.exception()  # the caller may be cancelled
