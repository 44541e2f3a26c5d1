"""The one path of events to durable results: a transaction for each event, and one commit for all of a request.

A store with several owners checks at the commit whether a transaction has read the present state. If not, the event
runs again in a new transaction (an optimistic transaction, as databases call it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import msgspec

from ingestd.api.backend import Partition
from ingestd.api.errors import DuplicateMessage, Unavailable, WriteConflict
from ingestd.api.events import Endpoint, Event, Principal
from ingestd.api.journal import Append, Journal
from ingestd.api.outcomes import Outcome
from ingestd.api.store import Store
from ingestd.hooks.caller import Hooks
from ingestd.scheduling.coroutines import Work
from ingestd.scheduling.room import Backpressure
from ingestd.storage.placements import Placements

from .event_order import EventOrder
from .resolver import Resolved, Resolver, repeated

__all__ = ["Awaited", "Processing", "Processor", "Processors", "Result"]

Result = Resolved | Exception
"""The result of an event, or the error that has prevented it."""

_MOST_ATTEMPTS = 20  # an attempt fails only if another daemon has written the same visitor's state meanwhile
_LARGE = 256 << 10  # bytes of a record
_NO_RESULT = RuntimeError("an event has no result")

_freeze = msgspec.json.Encoder(enc_hook=attrgetter("value")).encode  # of its endpoint
_thaw = msgspec.json.Decoder(Event, dec_hook=lambda _, value: Endpoint.of(value)).decode


@dataclass(eq=False)
class Processor:
    """What processes the events of one partition: `store` and `journal` are the partition's."""

    resolver: Resolver
    store: Store
    journal: Journal
    backpressure: Backpressure
    check: Callable[[str], None] | None = None
    """Raises `Unavailable` for a tenant that does not belong to the partition now."""
    reruns: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks of events that run again."""


class Processors:
    """The processors of all partitions. `store` is the store over them. A tenant belongs to one partition.

    `backpressures` has the limits of each partition. Several partitions need `placements`.
    """

    def __init__(
        self,
        hooks: Hooks,
        store: Store,
        partitions: Sequence[Partition],
        backpressures: Sequence[Backpressure],
        placements: Placements | None = None,
    ) -> None:
        self.store = store
        self.backpressure = backpressures[0]
        """The limits of the first partition, which has room and pace in common with the others."""
        self._placements = placements or Placements(1)
        self._all = [
            Processor(
                Resolver(hooks, partition.journal), partition.store, partition.journal, backpressure,
                None if len(partitions) == 1 else partial(self._placements.check, index),
            )
            for index, (partition, backpressure) in enumerate(zip(partitions, backpressures, strict=True))
        ]  # fmt: skip
        self._only = self._all[0] if len(partitions) == 1 else None

    def of(self, principal: Principal) -> Processor:
        return self._only or self._all[self.index_of(principal)]

    def index_of(self, principal: Principal | None) -> int:
        """The index of a sender's partition; 0 as long as the sender is unknown."""
        return 0 if principal is None or self._only is not None else self._placements.index_of(principal.tenant)


class _Attempt(Append, frozen=True, gc=False):
    """One attempt to store an event."""

    index: int = 0
    parsed: bytes = b""
    """The event as it was parsed, for another attempt; empty if the store never asks for one."""
    result: Result = _NO_RESULT


class Processing:
    """Events that are stored together, from their first attempt to their results, which `end` takes."""

    __slots__ = (
        "_attempts", "_attempts_left", "_context", "_messages", "_processor", "_repeats", "_results", "_size",
    )  # fmt: skip

    async def process(self, processor: Processor, events: Iterable[Event | None]) -> None:
        """Resolve and store events as if each had come alone, in their order. A single event is a tuple of one.

        An event is taken from `events` when its turn has come. None stands for an event that was refused while it was
        read, and has no result. `end` is called before this returns, or later.
        """
        self._processor = processor
        self._context = copy_context() if processor.store.may_conflict else None
        self._results: list[Result] = []
        self._attempts: list[_Attempt] = []
        self._attempts_left = _MOST_ATTEMPTS
        self._size = 0
        """Bytes of the records that wait for their commit."""
        self._messages: dict[str, int] = {}
        """The first event with each message, by its index."""
        self._repeats: list[tuple[int, int]] = []
        """Events that repeat a message of the request, each with the first event, whose result it shares."""
        if isinstance(events, tuple):  # one event has no order
            await self._attempt(0, events[0])
        else:
            await EventOrder(events, self._attempt).run()
        await self._append()

    def end(self, results: list[Result]) -> None:
        """Called once, in the event loop, when all events are durable or have failed. Must not raise.

        The results are in the order of the events. An error of one event stands in place of its result.
        """
        raise NotImplementedError

    async def _attempt(self, index: int, event: Event, parsed: bytes | None = None) -> None:
        """Resolve an event in a new transaction. `parsed` is the event as it was parsed, if an attempt has failed."""
        processor = self._processor
        if parsed is None:
            parsed = b"" if self._context is None else _freeze(event)
        message_id = event.message_id
        if message_id is not None:
            first = self._messages.get(message_id, index)
            if first != index:
                self._repeats.append((index, first))
                return
        state = processor.store.begin(event.received_at, event=True)
        # An event without a record or with an error is committed too: its result may depend on writes of others, and
        # others may have read its writes by now.
        try:
            if processor.check is not None:  # in the turn in which the transaction begins
                processor.check(event.tenant)
            resolved = await processor.resolver.resolve(event, state)
        except Exception as error:  # noqa: BLE001 - it is the result of this event alone
            self._attempts.append(_Attempt(state, None, None, index, parsed, error))
            return
        record = resolved.record
        self._attempts.append(_Attempt(state, record, resolved.idempotency_key, index, parsed, resolved))
        if record is not None:
            self._size += len(record.body)
            if message_id is not None:
                self._messages[message_id] = index

    async def _append(self) -> None:
        """Commit all transactions. Large records, which are in memory several times, wait for their turn."""
        if len(self._attempts) > 1:
            self._attempts.sort(key=attrgetter("index"))
        if self._size > _LARGE:
            await self._processor.backpressure.large_records.begin_turn(self._size)
        await self._processor.journal.append(self._attempts, self._committed)

    def _committed(self, errors: Sequence[Exception | None]) -> None:
        """Note the results. Events with a conflict run again, in their order."""
        if self._size > _LARGE:
            self._processor.backpressure.large_records.end(self._size)
        self._size = 0
        attempts, self._attempts = self._attempts, []
        results = self._results
        if not results:
            results += [_NO_RESULT] * (len(attempts) + len(self._repeats))
        conflicts = []
        for attempt, error in zip(attempts, errors, strict=True):
            if error is None:
                results[attempt.index] = attempt.result
            elif isinstance(error, WriteConflict) and not isinstance(attempt.result, Exception):
                conflicts.append(attempt)
            else:
                results[attempt.index] = _result(attempt.result, error)
        if conflicts:
            self._attempts_left -= 1
            task = asyncio.get_running_loop().create_task(self._run_again(conflicts), context=self._context)
            self._processor.reruns.add(task)
            task.add_done_callback(self._processor.reruns.discard)
        else:
            self._finish()

    async def _run_again(self, attempts: Sequence[_Attempt]) -> None:
        def attempt_again(number: int, event: Event) -> Work:
            return self._attempt(attempts[number].index, event, attempts[number].parsed)

        try:
            if not self._attempts_left:
                raise Unavailable("The stored data keeps changing. Send the request again.")
            await EventOrder((_thaw(attempt.parsed) for attempt in attempts), attempt_again).run()
            await self._append()
        except Exception as error:  # noqa: BLE001 - it is the result of these events
            for attempt in attempts:
                self._results[attempt.index] = error
            self._finish()

    def _finish(self) -> None:
        results, self._results = self._results, []  # an error refers to this object, in its traceback
        for index, first in self._repeats:
            result = results[first]
            results[index] = Resolved(Outcome.DUPLICATE, result.session) if isinstance(result, Resolved) else result
        self.end(results)


class Awaited(Processing):
    """Events whose caller waits for the `results`."""

    __slots__ = ("results",)

    def __init__(self) -> None:
        self.results: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()

    def end(self, results: list[Result]) -> None:
        if not self.results.done():  # the caller was cancelled
            self.results.set_result(results)


def _result(result: Result, error: Exception) -> Result:
    """The result of an event whose transaction was not committed."""
    if isinstance(error, DuplicateMessage):
        return repeated(error.value)
    if isinstance(result, Exception) and isinstance(error, WriteConflict | Unavailable):
        return result
    return error
