"""The contract of the journal: an append-only, durable, ordered log of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .events import Record
from .store import State

__all__ = ["Cursor", "Journal", "Start"]

Start = Literal["now", "beginning"]


class Cursor(NamedTuple):
    """The place of a consumer: the position of the last record it has done with.

    `fence` tells the present holder from earlier ones where several daemons share a journal.
    """

    name: str
    position: int
    fence: int = 0


class Journal(ABC):
    @abstractmethod
    async def append(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        """Append records and return the position of the last one, or of the cursor, once durable.

        What `state` wrote becomes durable with them, in the same commit where journal and state live
        together; with `cursor`, the consumer's place moves in it too. All of it happens or nothing.
        Raises `Unavailable`.
        """

    @abstractmethod
    async def read(self, after: int, limit: int) -> Sequence[Record]:
        """The next records behind a position, in order, at most `limit`; durable ones only."""

    @abstractmethod
    async def wait(self, after: int) -> None:
        """Returns when there are records behind that position."""

    @abstractmethod
    async def last(self) -> int:
        """The position of the newest durable record, 0 in an empty journal."""

    @abstractmethod
    async def hold(self, name: str, start: Start) -> Cursor:
        """Become the one holder of a consumer's place, waiting for another holder to let go.

        A name never seen before starts as told, durably: behind the present last record, or before
        the first.
        """
