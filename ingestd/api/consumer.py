"""The contract of a consumer, which works on records in journal order after the answer.

A consumer has a name, a durable cursor in the journal, and one holder at a time. Each sink has a consumer that feeds
it. Plugins register other consumers with `register_consumers`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from ingestd.support.backoff import Backoff

from .errors import ConfigError
from .events import Record
from .journal import Journal, Start
from .store import State

__all__ = ["Consumer", "NextAction", "Step"]

NextAction = Literal["records", "command", "flush", "nothing"]
"""The next action of a consumer: a step with its next records, an operator's command, or nothing for now.

"flush" makes buffered records durable. No records are read before that.
"""


class Step:
    """One atomic step of a consumer: its state and records become durable together with the cursor.

    Either all of a step happens or nothing. So a consumer derives each record exactly once.
    """

    __slots__ = ("_give_way", "_journal", "buffered", "committed", "done", "flushed", "records", "rewound", "state")

    def __init__(
        self,
        state: State,
        give_way: Callable[[float], Awaitable[None]] = asyncio.sleep,
        journal: Journal | None = None,
    ) -> None:
        self.state = state
        self._give_way = give_way
        self._journal = journal
        self.records: list[Record] = []
        self.done: int | None = None
        """The number of records, from the first, that the step has processed; None: all.

        With 0 the step is committed without moving the cursor, and the same records come again at once.
        """
        self.buffered = False
        """Whether the processed records wait in a buffer. Nothing is committed, and the cursor stays.

        The next step gets the records after them. They come again after a crash or a `close`.
        """
        self.flushed: Record | None = None
        """The record to which a flush moves the cursor: the last one in the buffer, or an earlier one."""
        self.rewound = False
        """Whether a flush has emptied the buffer without effect, so that all records after the cursor come again."""
        self.committed: Callable[[], None] = _nothing
        """Called once the whole step is durable."""

    def append(self, record: Record) -> None:
        """Append a record to the journal with this step."""
        self.records.append(record)

    async def read_again(self, record: Record) -> Record:
        """The record as the journal has it now: `ingestd forget` may have blanked it while the step was at work."""
        read = () if self._journal is None else await self._journal.read(record.position - 1, 1)
        return read[0] if read and read[0].position == record.position else record

    async def give_way(self, seconds: float = 0.0) -> None:
        """Yield the event loop to other tasks for one turn, or for `seconds`. Long work must await it every few 0.1 ms.

        During a burst of batches it waits up to 50 ms longer. So consumers get little done, and slow the burst by a
        tenth.
        """
        await self._give_way(seconds)


class Consumer(ABC):
    name: str
    """Unique and stable: the durable cursor has this name."""

    start: Start = "beginning"
    """Where a consumer without a cursor begins in the journal."""

    max_records: int = 500
    """The most records in one step."""

    linger: float = 0.0
    """The seconds that a step may wait for more records after the first."""

    backoff: Backoff = Backoff()
    """The pause before a failed step is tried again."""

    polls_commands: bool = False
    """Whether the consumer has work besides its records, so that the daemon must call `next_action`."""

    def for_partition(self, name: str) -> Consumer:
        """A consumer with the same name and options for a partition of the store.

        A store with several partitions has a journal and state in each. The daemon then runs a separate consumer in
        each of them, and never this one. It calls this after the plugin's `startup`. The consumers share whatever
        this method gives to all of them. Raises `ConfigError` if the consumer cannot be divided.
        """
        raise ConfigError(
            f"the consumer {self.name} cannot run on a store with several partitions: {type(self).__name__} has no"
            " for_partition()"
        )

    async def open(self) -> None:  # noqa: B027 - most have nothing to open
        """Called before the first step, and again until it does not raise.

        If several daemons share a journal, it is called once this daemon holds the cursor. It is called again after a
        `close`, if another daemon held the cursor meanwhile.
        """

    def wants_more(self, records: Sequence[Record]) -> bool:
        """Whether the step needs further records after these, if the journal has any."""
        return False

    @abstractmethod
    async def process(self, records: Sequence[Record], step: Step) -> None:
        """Do one step. Raising undoes the step, and the same records come again after a pause."""

    async def prepare(self, records: Sequence[Record]) -> None:  # noqa: B027 - most have nothing to prepare
        """Begin work on the records of the next step during the commit of the present one, if records are pending.

        The work must need no state and must be safe to repeat: the commit may fail, or the process may end. The next
        step gets the same sequence object, unless its records are removed or another daemon continues in the meantime.
        Raising does not undo the present step; the next step is tried after a pause.
        """

    async def next_action(self, state: State) -> NextAction:
        """Return the next action. Called before each step, and every half second. Its writes to `state` are committed.

        It must not write the entries that the steps write, because a step works on a separate view of them.
        """
        return "records"

    async def command(self, step: Step, journal: Journal) -> None:  # noqa: B027 - most have none
        """Do a part of the work besides the records, in a step that does not move the cursor.

        Raising undoes the step. It is called again after a pause, and the records continue meanwhile.
        """

    async def flush(self, step: Step, journal: Journal) -> None:  # noqa: B027 - most have no buffer
        """Make buffered records durable, in a step that moves the cursor to `step.flushed`.

        Without `flushed`, the step only commits its state.
        """

    def hurry(self) -> None:  # noqa: B027 - most have no buffer
        """Called when the consumer will end soon. A buffer must be flushed once no more records are pending."""

    def end(self) -> None:  # noqa: B027 - most wait for nothing
        """Called when the daemon stops. A write that waits for its turn must not begin, because it may be cut off."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Called after the last step."""


def _nothing() -> None:
    pass
