"""The consumer of a buffering sink: the cursor waits until a flush has made the records durable."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ingestd.api.consumer import NextAction, Step
from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.sink import Sink
from ingestd.api.store import State

from .batch_plan import BATCH_PLAN, BatchPlan
from .batch_writer import LetterWriter
from .dead_letters import DeadLetter
from .operator_commands import Discard, Replay
from .options import SinkOptions
from .progress import Progress
from .sink_buffer import Buffered, SinkBuffer
from .sink_consumer import SinkConsumer
from .transforms import RecordTransform

__all__ = ["BufferedSinkConsumer"]


_REPLAY_PART = 10.0
"""Seconds after which a replay is flushed even if the buffer is not full, because new records wait meanwhile."""


class BufferedSinkConsumer(SinkConsumer):
    """The consumer of a buffering sink.

    Records go to the buffer of the sink, and their steps are not committed. A flush is due if the buffer is full or
    old, before an operator's command, before a pause, and at a shutdown. One step stores the part of the journal that
    the flush covers. The next one calls the sink's `flush`, and moves the cursor. After a crash between them the same
    part comes again, so that the same flush is made again.

    A flush may keep failing because of a record. Then the records come again, and each batch is flushed alone, so that
    `BatchWriter` finds the record.
    """

    def __init__(
        self,
        sink: Sink,
        options: SinkOptions,
        transform: RecordTransform | None = None,
        *,
        partition: str = "",
    ) -> None:
        super().__init__(sink, options, transform, partition=partition)
        self._buffer = Buffered()
        self._sink_buffer = SinkBuffer(sink, self._timeout)
        self._writer = self._make_writer(write=self._sink_buffer.write)
        self._replay_writer = self._make_writer(in_turn=False, write=self._sink_buffer.write)
        self._letter_writer = self._make_writer(LetterWriter, in_turn=False, write=self._sink_buffer.write_through)
        self._attempts = options.retry.attempts
        self._failures = 0
        """The number of failed flushes in a row that may be the fault of a record."""
        self._replay_failures = 0
        self._has_failed = False
        """Whether the last flush failed."""
        self._through = 0
        """The position up to which each batch is flushed alone."""
        self._replay_through = 0
        self._comes_more = False
        """Whether the journal probably has further records: a step since the last `next_action` had a full batch."""
        self._hurried = False
        self._not_before = 0.0
        """The time before which age makes no flush due, on the monotonic clock."""

    def for_partition(self, name: str) -> BufferedSinkConsumer:
        """The consumer of a partition. It has a separate sink, because it alone knows what is in its buffer."""
        sink = type(self.sink)(self.sink.name, self.sink.options)
        made = BufferedSinkConsumer(sink, self.options, self.transform, partition=name)
        made.only_commands = self.only_commands
        return made

    def wants_more(self, records: Sequence[Record]) -> bool:
        return False

    async def prepare(self, records: Sequence[Record]) -> None:
        """Nothing, because the buffer may be full after the present step."""

    async def close(self) -> None:
        await super().close()
        self._buffer = Buffered()
        self._sink_buffer.forget()
        self._failures = self._replay_failures = self._through = self._replay_through = 0

    def hurry(self) -> None:
        self._hurried = True

    async def next_action(self, state: State) -> NextAction:
        action = await super().next_action(state)
        comes_more, self._comes_more = self._comes_more, False
        if self._buffer.last is None:
            return action
        is_old = self._buffer.age >= self.sink.flush_after and time.monotonic() >= self._not_before
        if self._misses_records(self._buffer.last):  # the flush of before the crash must be made again, as it was
            return "flush" if is_old else "records" if action == "command" else action
        if action == "nothing":  # a pause
            return action if self._has_failed else "flush"
        command = self._next_command() if action == "command" else None
        needs_empty_buffer = command is not None and not isinstance(command, Discard)
        is_due = is_old or self._is_complete(self._buffer.last) or (self._hurried and not comes_more)
        return "flush" if is_due or needs_empty_buffer else action

    def _misses_records(self, last: Record) -> bool:
        """Whether the plan from before a crash goes beyond the buffer."""
        return self._plan is not None and self._plan.first <= last.position < self._plan.last

    def _is_complete(self, last: Record) -> bool:
        """Whether nothing may be added to the buffer."""
        is_planned = self._plan is not None and last.position == self._plan.last
        buffer = self._buffer
        return is_planned or buffer.is_durable or buffer.has_much_given_up or self.sink.is_full()

    async def _process(self, records: Sequence[Record], step: Step) -> None:
        self._comes_more = len(records) == self.max_records
        is_through = self._buffer.last is None and records[0].position <= self._through
        self._sink_buffer.flushes_each = is_through
        some = records if is_through else self._within_plan(records)
        result = await self._write(some)
        if is_through or (self._buffer.last is None and not result.delivered):
            await self._commit_result(result, step)
            return
        self._results = []
        self._buffer.add(result)
        step.done, step.buffered = result.done, True

    def _within_plan(self, records: Sequence[Record]) -> Sequence[Record]:
        plan = self._plan
        if plan is None or not plan.begins_with(records[0]) or records[-1].position <= plan.last:
            return records
        return [record for record in records if record.position <= plan.last]

    def _reached(self, position: int) -> int:
        return position if self._buffer.last is None else self._buffer.last.position

    async def flush(self, step: Step, journal: Journal) -> None:
        self._has_failed = True
        await self._tried(self._flush(step, journal))
        self._has_failed = False

    async def _flush(self, step: Step, journal: Journal) -> None:
        buffer, name = self._buffer, self.sink.name
        assert buffer.last is not None
        if buffer.delivered and not buffer.is_durable:
            plan = self._plan
            if plan is None or not plan.ends_with(buffer.last):
                if plan is not None and self._misses_records(buffer.last) and await journal.last() >= plan.last:
                    self._not_before = time.monotonic() + self.sink.flush_after  # its other records are still coming
                    return
                plan = BatchPlan(buffer.first, buffer.last.position, buffer.last.at)
                await BATCH_PLAN.save(step.state, plan, name)
                step.committed = lambda: self._set_plan(plan)
                return
            try:
                await self._sink_buffer.flush(plan.span(self._partition))
            except SinkRetry:
                raise
            except Exception:
                self._failures += 1
                if self._failures < self._attempts:
                    raise
                await self._write_through_buffered(step, buffer.last.position)
                return
            buffer.is_durable = True
        self._failures = 0
        progress = await self._progress(step.state, buffer.first - 1)
        letters = await self._add_to(progress, step, buffer.delivered, buffer.filtered, buffer.given_up)
        step.flushed = buffer.last
        step.committed = lambda: self._flushed(buffer, progress, letters)

    def _flushed(self, buffer: Buffered, progress: Progress, letters: Sequence[DeadLetter]) -> None:
        self._count(buffer.delivered, buffer.filtered, len(letters))
        self._buffer = Buffered()
        self._report(progress, letters)

    async def _write_through_buffered(self, step: Step, position: int) -> None:
        """Let the buffered records come again, and flush each batch alone."""
        # A flush with its span could replace a part of what was written.
        await BATCH_PLAN.save(step.state, None, self.sink.name)
        step.rewound = True
        step.committed = lambda: self._begin_writing_through(position)

    def _begin_writing_through(self, position: int) -> None:
        self._failures = 0
        self._through = position
        self._plan = None
        self._writer.forget()
        self._evidence.forget()  # none of these records was durable, so each is new to the sink
        self._buffer = Buffered()
        self._sink_buffer.discard()

    async def _replay(
        self, command: Replay, step: Step, progress: Progress, journal: Journal, position: int
    ) -> Sequence[DeadLetter]:
        """Do as much of a replay as the buffer holds, and flush it. After failures, each batch is flushed alone."""
        began = progress.at
        self._sink_buffer.flushes_each = began < self._replay_through
        if self._sink_buffer.flushes_each:
            some = await super()._replay(command, step, progress, journal, position)
            if progress.command == command.number:
                self._replay_through = 0
            return some
        await self._sink_buffer.prepare()
        letters: list[DeadLetter] = []
        replayed, until = progress.replayed, time.monotonic() + _REPLAY_PART
        while progress.command < command.number and not self.sink.is_full() and time.monotonic() < until:
            try:
                letters += await super()._replay(command, step, progress, journal, position)
            except Exception:
                if progress.at == began:
                    self._sink_buffer.discard()
                    raise
                break  # the failure comes again after the flush of the records before it
        if progress.replayed == replayed:
            return letters
        end = progress.at or position
        self._sink_buffer.discard()  # unless the flush and its commit succeed, the replay begins here again
        try:
            await self._sink_buffer.flush(None)
        except SinkRetry:
            raise
        except Exception:
            self._replay_failures += 1
            if self._replay_failures >= self._attempts:
                self._replay_failures, self._replay_through = 0, end
            raise
        self._replay_failures = 0
        self._sink_buffer.forget()
        return letters
