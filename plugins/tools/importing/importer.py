"""Stores the events of lines: a chunk of them at a time, in their order, each once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import cast

from ingestd.api import times
from ingestd.api.errors import DuplicateMessage, Refused, Unavailable, WriteConflict
from ingestd.api.events import Event, Record
from ingestd.api.journal import Append, Journal
from ingestd.api.outcomes import Outcome
from ingestd.config import Config
from ingestd.pipeline.processor import Awaited, Processor, Result
from ingestd.storage.retention import room_below

from .known_records import FormerCopies, KnownRecords
from .line_reader import Item, LineReader
from .lines import Line
from .progress import Interruption
from .tally import Tally

__all__ = ["Importer", "Room", "chunks"]

_MANY = 250  # lines of a chunk
_LARGE = 1 << 20  # bytes of a chunk; as events they take up to forty times as many
_ATTEMPTS = 20

Stored = tuple[Line, Item]


def chunks(lines: Iterable[Line], most: int) -> Iterator[list[Line]]:
    """The lines in groups that are in memory together. A group has about `most` bytes, and at most a megabyte."""
    most = min(most, _LARGE)
    chunk: list[Line] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line.content)
        if len(chunk) == _MANY or size >= most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Importer:
    """Stores the lines of a file, and counts them in `tally`.

    `processor_of` returns the processor for the partition of a tenant, the same for each tenant of the partition.
    `fault` is called for each line that cannot be imported. With `dry_run` nothing is stored.
    """

    def __init__(
        self,
        reader: LineReader,
        processor_of: Callable[[str], Processor],
        known: KnownRecords,
        tally: Tally,
        *,
        fault: Callable[[Line, Refused], None],
        dry_run: bool,
    ) -> None:
        self._reader = reader
        self._processor_of = processor_of
        self._known = known
        self._tally = tally
        self._fault = fault
        self._dry_run = dry_run
        self._again: list[Stored] = []
        """Items of the chunk that another transaction has prevented."""
        self._former = FormerCopies()

    async def take(self, chunk: Sequence[Line]) -> None:
        """Import the lines. All that can be imported is durable then. Raises `Unavailable`, `CommandError`."""
        self._reader.now = times.now()
        self._tally.lines += len(chunk)
        waiting: list[Stored] = []
        for line in chunk:
            try:
                if line.fault is not None:
                    raise line.fault
                items = self._reader.read(line.content)
            except Refused as refused:
                self._refuse(line, refused)
                continue
            waiting += [(line, found) for item in items if (found := self._chosen(item)) is not None]
        if self._dry_run:
            for _, item in waiting:
                self._tally.stored(item, changes_state=self._reader.changes_state)
            return
        for _ in range(_ATTEMPTS):
            await self._store(waiting)
            waiting, self._again = self._again, []
            if not waiting:
                await self._former.mark()
                return
        raise Unavailable("the stored data keeps changing; run the command again")

    def _chosen(self, item: Item) -> Item | None:
        """The item to store, or None. What the journal has without state is stored once more, if this changes state."""
        known, counts, changes_state = self._known, self._tally.counts, self._reader.changes_state
        if item.content is None:
            counts["dropped" if item.type in {"event", "identify"} else "derived"] += 1
            if item.cause is not None and (history := known.without_state(item.id)) and self._is_counted(item.cause):
                self._former.add(self._processor_of(item.tenant).journal, history)
            return None
        former = known.without_state(item.id)
        if former and changes_state:
            item = item.again(former)
        elif former is not None or self._has_message(item):
            counts["duplicate"] += 1
            if former:
                self._tally.missing(item)
                known.add(item.id)  # further copies of the line miss nothing more
            return None
        if item.person is not None and known.has_forgotten(*item.person, item.received_at):
            counts["forgotten"] += 1
            return None
        known.add(item.id, item.message, item.received_at)
        if isinstance(item.content, Record):
            known.add_erasure(item.content)
        return item

    def _is_counted(self, record_id: str) -> bool:
        """Whether the journal has the record with state, or this import has stored it so."""
        return self._known.without_state(record_id) == 0

    def _has_message(self, item: Item) -> bool:
        """Whether the journal has the message. A shop may use its id again for another event, a day later."""
        near = item.received_at if item.is_record else None
        return item.message is not None and self._known.has_message(*item.message, near)

    async def _store(self, items: Iterable[Stored]) -> None:
        """Store items in the order of their partition."""
        parts: dict[Processor, list[Stored]] = {}
        for each in items:
            parts.setdefault(self._processor_of(each[1].tenant), []).append(each)
        runs = [(run, processor) for processor, part in parts.items() for run in _runs(part)]
        begun = [(run, await _start_storing(run, processor, self._reader.now)) for run, processor in runs]
        for run, results in begun:
            for (line, item), result in zip(run, await results, strict=True):
                self._end(line, item, result)

    def _end(self, line: Line, item: Item, result: Result | None) -> None:
        if result is None or (not isinstance(result, Exception) and result.outcome is Outcome.ACCEPTED):
            self._tally.stored(item, changes_state=self._reader.changes_state)
            if item.former:
                self._former.add(self._processor_of(item.tenant).journal, item.former)
        elif not isinstance(result, Exception):
            self._tally.counts[result.outcome.value] += 1
        elif isinstance(result, DuplicateMessage):
            self._tally.counts["duplicate"] += 1
        elif isinstance(result, WriteConflict):
            self._again.append((line, item))
        elif isinstance(result, Refused) and not isinstance(result, Unavailable):
            self._refuse(line, result)
        else:
            raise result

    def _refuse(self, line: Line, refused: Refused) -> None:
        self._tally.counts[refused.outcome.value] += 1
        self._fault(line, refused)


async def _start_storing(
    run: Sequence[Stored], processor: Processor, now: int
) -> asyncio.Future[Sequence[Result | None]]:
    """Begin to store items of one kind in a partition. The future has their results when they are durable."""
    contents = [item.content for _, item in run]
    if isinstance(contents[0], Record):
        done: asyncio.Future[Sequence[Result | None]] = asyncio.get_running_loop().create_future()
        records = cast("Sequence[Record]", contents)
        appends = [Append(processor.store.begin(now, event=True), record) for record in records]
        await processor.journal.append(appends, done.set_result)
        return done
    awaited = Awaited()
    await awaited.process(processor, cast("list[Event]", contents))
    return cast("asyncio.Future[Sequence[Result | None]]", awaited.results)


def _runs(items: Sequence[Stored]) -> Iterator[list[Stored]]:
    """The items in groups of one kind. No group has two events with the same message: the second would be no event."""
    for _, group in groupby(items, lambda each: isinstance(each[1].content, Record)):
        run: list[Stored] = []
        messages: set[str] = set()
        for line, item in group:
            if item.message is not None:
                message_id = item.message[1]
                if message_id in messages:
                    yield run
                    run, messages = [], set()
                messages.add(message_id)
            run.append((line, item))
        yield run


_LOOK = 0.2  # seconds between two looks at a full journal
_LONGEST_WAIT = 30.0  # seconds without room in the journal until the command gives up


class Room:
    """The room in journals with `max_size`. The daemon refuses events while their journal is full."""

    def __init__(self, journals: Sequence[Journal], config: Config) -> None:
        self._journals = journals
        self._limit = None if config.journal.max_size is None else room_below(int(config.journal.max_size))
        self.chunk = sys.maxsize
        """The bytes of lines that certainly have room while the journal is not nearly full."""
        if config.journal.max_size is not None and self._limit is not None:
            self.chunk = (int(config.journal.max_size) - self._limit) // 4

    async def wait(self, interruption: Interruption) -> None:
        """Wait while a journal is nearly full. Raises `Unavailable` if nothing makes room, and `Interrupted`."""
        interruption.check()
        if self._limit is None:
            return
        loop = asyncio.get_running_loop()
        least, since = sys.maxsize, loop.time()
        while (size := max([(await journal.extent()).bytes for journal in self._journals])) > self._limit:
            if size < least:
                least, since = size, loop.time()
            elif loop.time() - since > _LONGEST_WAIT:
                raise Unavailable(
                    "the journal is full ([journal] max_size), and no daemon makes room in it; when its sinks have"
                    " caught up, run the command again: it goes on where it was"
                )
            interruption.check()
            await asyncio.sleep(_LOOK)
