"""What is published: messages, and how many of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Message", "parts"]

_IN_FLIGHT = 16 << 20  # bytes published before they are acknowledged: the server has to hold them


class Message(NamedTuple):
    subject: str
    body: bytes
    headers: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """As the server counts it."""
        lines = [f"{name}: {value}\r\n" for name, value in (self.headers or {}).items()]
        return len("".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode()) + len(self.body)


def parts(messages: Sequence[Message]) -> Iterator[tuple[int, Sequence[Message]]]:
    """Messages that may be on their way together, and the index of the first."""
    start, size = 0, 0
    for index, message in enumerate(messages):
        if size and size + message.size > _IN_FLIGHT:
            yield start, messages[start:index]
            start, size = index, 0
        size += message.size
    yield start, messages[start:]
