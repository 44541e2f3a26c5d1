"""The contract of a consumer: work behind the answer, done in journal order.

A consumer has a name, a durable place in the journal, and one holder at a time. Sinks are fed by
consumers; a plugin registers its own with `register_consumers`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from .backoff import Backoff
from .events import Record
from .journal import Journal, Start
from .store import State

__all__ = ["Consumer", "Step", "Turn"]

Turn = Literal["records", "errand", "nothing"]
"""What a consumer does next: a step with its next records, something else, or, for now, nothing at all."""


class Step:
    """One atomic step of a consumer: the state and records it writes become durable with its place.

    Either all of a step happens or nothing, so what a consumer derives, it derives exactly once.
    """

    __slots__ = ("_give_way", "committed", "done", "records", "state")

    def __init__(self, state: State, give_way: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.state = state
        self._give_way = give_way
        self.records: list[Record] = []
        self.done: int | None = None
        """How many of the records it was given it is done with, from the first (at least one); None: with all."""
        self.committed: Callable[[], None] = _nothing
        """Called when all of it has become durable."""

    def append(self, record: Record) -> None:
        """Append a record to the journal with this step."""
        self.records.append(record)

    async def give_way(self, seconds: float = 0.0) -> None:
        """Let others have the event loop for a turn, or for so long: to be awaited every few 0.1 ms of long work.

        A burst of batches has it for longer, up to 50 ms: what is done in its turns is little, and costs it a tenth.
        """
        await self._give_way(seconds)


class Consumer(ABC):
    name: str
    """Unique and stable: the durable place goes by it."""

    start: Start = "beginning"
    """Where a consumer begins that was never seen before."""

    max_records: int = 500
    """How many records one step gets at the most."""

    linger: float = 0.0
    """Seconds a step may wait for more records than the first."""

    backoff: Backoff = Backoff()
    """How long to pause before a step that failed is tried again."""

    attended: bool = False
    """Whether it has more to do than its records, so that it wants to be asked for its `turn`."""

    async def open(self) -> None:  # noqa: B027 - most have nothing to open
        """Called before the first step, and again until it does not raise.

        Where several daemons share a journal, it is called once this one goes on with the consumer's place, and
        again after a `close`, when the place had been another daemon's meanwhile.
        """

    @abstractmethod
    async def process(self, records: Sequence[Record], step: Step) -> None:
        """Do one step. Raising undoes it; the same records come again after a pause."""

    async def prepare(self, records: Sequence[Record]) -> None:  # noqa: B027 - most have nothing to prepare
        """Begin on the records of the next step while the step before is being committed, where many wait.

        So this is for what may be done again, and needs no state: that commit may fail, or the process end. The
        next step is given the very same sequence, unless its records have been removed or another daemon goes on
        meanwhile. Raising does not undo the step before; the next one is tried after a pause.
        """

    async def turn(self, state: State) -> Turn:
        """What is next. Asked before each step, and every half second; what it writes to `state` is committed.

        Not the entries its steps write, though: a step works on its own view of them.
        """
        return "records"

    async def errand(self, step: Step, journal: Journal) -> None:  # noqa: B027 - most have none
        """Do some of what is to be done beside the records, in a step that leaves the place where it is.

        Raising undoes it; it is asked for again after a pause, and the records go on meanwhile.
        """

    async def close(self) -> None:  # noqa: B027 - or to close
        """Called after the last step."""


def _nothing() -> None:
    pass
