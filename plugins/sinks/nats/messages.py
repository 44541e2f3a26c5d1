"""Messages to publish, and the split of a batch into parts that are in flight together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Message", "parts"]

_IN_FLIGHT = 16 << 20  # bytes published before they are acknowledged: the server must hold them


class Message(NamedTuple):
    subject: str
    body: bytes
    headers: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """The size in bytes as the server counts it."""
        lines = [f"{name}: {value}\r\n" for name, value in (self.headers or {}).items()]
        return len("".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode()) + len(self.body)


def parts(messages: Sequence[Message]) -> Iterator[tuple[int, Sequence[Message]]]:
    """Parts of the messages that may be in flight together, each with the index of its first message."""
    start, size = 0, 0
    for index, message in enumerate(messages):
        if size and size + message.size > _IN_FLIGHT:
            yield start, messages[start:index]
            start, size = index, 0
        size += message.size
    yield start, messages[start:]
