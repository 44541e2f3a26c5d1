"""The consumer of a sink: delivers the records of the journal at least once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ingestd.api import times
from ingestd.api.consumer import Consumer, NextAction, Step
from ingestd.api.errors import LeaseLost, Unavailable, reason_of
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.record_batch import length_of
from ingestd.api.sink import Sink
from ingestd.api.store import State
from ingestd.consumers.erasures import REMOVED
from ingestd.support.periodic import TIMING

from .batch_plan import BATCH_PLAN, BatchPlan
from .batch_writer import BatchWriter, GivenUp, LetterWriter, StepResult, WriteBatch, Written
from .dead_letter_log import DeadLetterLog
from .dead_letter_steps import DeadLetterSteps
from .dead_letters import DeadLetter, load_letter_bytes, measure_letters, read_letter
from .evidence import Evidence
from .operator_commands import OperatorCommand, OperatorCommands, Replay, load_commands
from .options import SinkOptions
from .progress import LAST_FAILURE, PROGRESS, LastFailure, Progress
from .shared_sink import SharedSink
from .transforms import RecordTransform, make_filter

__all__ = ["PREFIX", "SinkConsumer"]

PREFIX = "sink:"

_T = TypeVar("_T")

_AHEAD = 500  # records after those in hand that may serve as probes
_PART = 1 << 20  # bytes from which a batch may be only a part of what the journal has, because a read has a limit


class SinkConsumer(Consumer):
    """The consumer of one sink. Its name is `sink:NAME`.

    A failed write is repeated until it succeeds, with the same records and after a pause. Meanwhile the cursor waits.
    Two kinds of records become dead letters: records that the sink rejects, and a record that alone makes a batch fail
    (see `BatchWriter`). They do so in the step that moves the cursor past them.

    For a sink with stable batches, a step with the end of the batch comes before the first write.
    """

    polls_commands = True

    def __init__(
        self,
        sink: Sink,
        options: SinkOptions,
        transform: RecordTransform | None = None,
        *,
        shared: SharedSink | None = None,
        partition: str = "",
    ) -> None:
        """`shared` is the sink as the consumers of other partitions have it."""
        self.name = PREFIX + sink.name
        self.options = options
        self.start = options.start
        self.max_records = options.batch.max_events
        self.linger = float(options.batch.max_wait)
        self.backoff = options.retry.backoff
        self.sink = sink
        self.delivered = 0
        """Records that the sink has durably taken since the start of the daemon."""
        self.filtered = 0
        """Records that the filter excluded, since the start of the daemon."""
        self.given_up = 0
        """Records that became dead letters since the start of the daemon, without replayed and retried ones."""
        self.progress: Progress | None = None
        """None while the progress is unknown, or if there is none."""
        self.only_commands = False
        """Whether it delivers records only while it executes commands, so that it is idle after the last one."""
        self.max_letter_bytes = math.inf
        """The size that all dead letters may reach, in bytes. Further ones are without their records."""
        self.letter_bytes = 0
        """What the dead letters have of their records, in bytes, as far as this daemon knows."""
        self.last_reason: str | None = None
        """The reason of the newest dead letter, if that letter still exists."""
        self.transform = transform
        self._shared = SharedSink(sink, float(options.timeout)) if shared is None else shared
        self._partition = partition
        self._timeout = float(options.timeout)
        self._filter = make_filter(options.filter)
        self._evidence = Evidence()
        self._max_bytes = int(options.batch.max_bytes)
        self._writer = self._make_writer()
        self._replay_writer = self._make_writer(in_turn=False)
        self._letter_writer = self._make_writer(LetterWriter, in_turn=False)
        self._letters = DeadLetterSteps(sink.name, self.max_records)
        self._splits = 0
        """Splits counted by earlier writers."""
        self._plan: BatchPlan | None = None
        """The last stored plan of a batch, which may be done already."""
        self._results: list[StepResult] = []
        """The results for the present step and for the next step, until they are committed."""
        self._commands = OperatorCommands()
        self._read_at: float | None = None
        self._last_failure: LastFailure | None = None
        self._log = DeadLetterLog(sink.name, partition=partition)

    def _make_writer(
        self, writer: type[BatchWriter] = BatchWriter, *, in_turn: bool = True, write: WriteBatch | None = None
    ) -> BatchWriter:
        return writer(
            self.sink, self.options, self._evidence,
            in_turn=in_turn, transform=self.transform, write=write, shared=self._shared, partition=self._partition,
        )  # fmt: skip

    @property
    def _writers(self) -> tuple[BatchWriter, ...]:
        return self._writer, self._replay_writer, self._letter_writer

    @property
    def splits(self) -> int:
        return self._splits + sum(writer.splits for writer in self._writers)

    def for_partition(self, name: str) -> SinkConsumer:
        """The consumer of a partition. It shares the sink with the consumers of other partitions."""
        made = SinkConsumer(self.sink, self.options, self.transform, shared=self._shared, partition=name)
        made.only_commands = self.only_commands
        return made

    def count_on(self, other: SinkConsumer) -> None:
        """Add the counts of the consumer that this one replaces."""
        self.delivered += other.delivered
        self.filtered += other.filtered
        self._splits += other.splits

    async def open(self) -> None:
        await self._tried(self._shared.open(self))

    async def check(self) -> None:
        await self._shared.check()

    async def close(self) -> None:
        # Another daemon may continue with the sink. Then this knowledge is outdated when the cursor comes back.
        self.progress = self.last_reason = self._read_at = self._last_failure = self._plan = None
        self._results = []
        self._evidence.forget()
        for writer in self._writers:
            writer.forget()
        await self._shared.close(self)

    def end(self) -> None:
        for writer in self._writers:
            writer.is_ended = True

    async def next_action(self, state: State) -> NextAction:
        if self._read_at is None or time.monotonic() - self._read_at >= TIMING.sink_commands:
            await self._read_state(state)
        if self._commands.paused:
            return "nothing"
        if self._next_command() is not None or self._evidence.wanted:
            return "command"
        return "nothing" if self.only_commands else "records"

    async def _read_state(self, state: State) -> None:
        name = self.sink.name
        if self._read_at is None and (self.sink.stable_batches or self.sink.buffering):
            self._plan = await BATCH_PLAN.load(state, name)
        # In one round trip, which is most of the work of an idle daemon with many partitions.
        self._commands, self.progress, stored, size = await asyncio.gather(
            load_commands(state, name), PROGRESS.load(state, name), LAST_FAILURE.load(state, name),
            load_letter_bytes(state, name),
        )  # fmt: skip
        progress = self.progress
        if size is None and progress is not None and progress.dead:
            size = await measure_letters(state, name, progress.letters)
        self.letter_bytes = size or 0
        letter = await read_letter(state, name, progress.letters) if progress is not None and progress.dead else None
        self.last_reason = None if letter is None else letter.reason
        failure = self._last_failure
        if stored is not None and failure is not None and (stored.at, stored.reason) == (failure.at, REMOVED):
            self._last_failure = stored
        if self._last_failure != stored:
            await LAST_FAILURE.save(state, self._last_failure, name)
        self._read_at = time.monotonic()

    def wants_more(self, records: Sequence[Record]) -> bool:
        if self._plan is not None and self._plan.begins_with(records[0]) and records[-1].position < self._plan.last:
            return True
        return len(records) < self.max_records and _PART <= length_of(records) < self._max_bytes

    async def prepare(self, records: Sequence[Record]) -> None:
        if not self.sink.stable_batches:  # the end of a stable batch must be durable first
            await self._tried(self._write(records))

    async def process(self, records: Sequence[Record], step: Step) -> None:
        await self._tried(self._process(records, step))

    async def _process(self, records: Sequence[Record], step: Step) -> None:
        if self.sink.stable_batches and not await self._is_planned(records, step):
            return
        await self._commit_result(await self._write(records), step)

    async def _commit_result(self, result: StepResult, step: Step) -> None:
        progress = await self._progress(step.state, result.records[0].position - 1)
        letters = await self._add_to(progress, step, result.delivered, result.filtered, result.given_up)
        step.done = result.done
        step.committed = lambda: self._committed(progress, letters, result)

    async def _add_to(
        self,
        progress: Progress,
        step: Step,
        delivered: int,
        filtered: int,
        given_up: Sequence[tuple[Record, GivenUp]],
    ) -> list[DeadLetter]:
        """Store the end of some records, and return their dead letters."""
        letters = [await self._make_letter(step, progress, *each) for each in given_up]
        progress.delivered += delivered
        progress.given_up += len(letters)
        progress.filtered += filtered
        await PROGRESS.save(step.state, progress, self.sink.name)
        return letters

    async def _is_planned(self, records: Sequence[Record], step: Step) -> bool:
        """Whether the end of the next batch is durable. If not, the step stores it, and the same records come again."""
        wanted = self._select(records)
        if not wanted:
            return True
        plan = self._plan
        if plan is not None and plan.is_met_by(records) and records[wanted[0]].position <= plan.last:
            return True
        batch = self._writer.first([records[index] for index in wanted])
        plan = BatchPlan(records[0].position, batch[-1].position, batch[-1].at)
        await BATCH_PLAN.save(step.state, plan, self.sink.name)
        step.done = 0
        step.committed = lambda: self._set_plan(plan)
        return False

    def _set_plan(self, plan: BatchPlan | None) -> None:
        self._plan = plan

    def _select(self, records: Sequence[Record]) -> Sequence[int]:
        """The indexes of the records that pass the filter."""
        every = range(len(records))
        return every if self._filter is None else [index for index in every if self._filter(records[index])]

    async def _write(self, records: Sequence[Record]) -> StepResult:
        """Write records, unless the sink already has them.

        It has them after `prepare`, and after a step whose commit failed.
        """
        for result in self._results:
            if result.records is records:
                return result
        wanted = self._select(records)
        written = Written(0, {})
        if wanted:
            some = records if len(wanted) == len(records) else [records[index] for index in wanted]
            written = await self._writer.write(some, self._end_of_batch(some))
        result = StepResult(records, wanted, written)
        self._results = [*self._results[-1:], result]
        return result

    def _end_of_batch(self, records: Sequence[Record]) -> int | None:
        """The position of the last record of a stable batch, or None without stable batches."""
        if not self.sink.stable_batches or self._plan is None:
            return None
        return self._plan.last if self._plan.begins_with(records[0]) else None

    def _committed(self, progress: Progress, letters: Sequence[DeadLetter], result: StepResult | None = None) -> None:
        """Update the counts after a commit. `letters` has the new dead letters of the step.

        Dead letters of a command do not count as given up, because the sink has had these records before.
        """
        if result is not None:
            self._results = [each for each in self._results if each is not result]
            self._count(result.delivered, result.filtered, len(letters))
        self._report(progress, letters)

    def _count(self, delivered: int, filtered: int, given_up: int) -> None:
        self.delivered += delivered
        self.filtered += filtered
        self.given_up += given_up

    def _report(self, progress: Progress, letters: Sequence[DeadLetter]) -> None:
        self.progress = progress
        self._log.report(letters, progress.dead)

    async def command(self, step: Step, journal: Journal) -> None:
        position = await self._position(journal)
        if self._evidence.wanted:
            await self._read_ahead(journal, self._reached(position))
        command = self._next_command()
        if command is None:
            return
        progress = await self._progress(step.state, position)
        letters: Sequence[DeadLetter] = ()
        if isinstance(command, Replay):
            letters = await self._tried(self._replay(command, step, progress, journal, position))
        else:
            await self._tried(self._letters.carry_out(command, step.state, progress, journal, self._letter_writer))
        await PROGRESS.save(step.state, progress, self.sink.name)
        step.committed = lambda: self._committed(progress, letters)

    def _next_command(self) -> OperatorCommand | None:
        done = self.progress.command if self.progress is not None else 0
        return next((command for command in self._commands.waiting if command.number > done), None)

    async def _position(self, journal: Journal) -> int:
        for cursor in await journal.cursors():
            if cursor.name == self.name:
                return cursor.position
        raise LeaseLost("its cursor is not in the journal any more")

    def _reached(self, position: int) -> int:
        """The position up to which the sink was given records. `position` is the cursor's."""
        return position

    async def _read_ahead(self, journal: Journal, position: int) -> None:
        """Read further records for probes, because the sink has taken none of the records in hand."""
        ahead = await journal.read(position, self.max_records + _AHEAD)
        self._evidence.ahead = [record for record in ahead if self._passes(record)]
        self._evidence.wanted = False

    def _passes(self, record: Record) -> bool:
        return self._filter is None or self._filter(record)

    async def _replay(
        self, command: Replay, step: Step, progress: Progress, journal: Journal, position: int
    ) -> Sequence[DeadLetter]:
        """Do a part of a replay, and return its new dead letters."""
        letters = []
        last = min(command.last, position)  # records after the cursor are delivered anyway
        after = max(progress.at, command.first - 1)
        read = await journal.read(after, self.max_records) if after < last else ()
        records = [record for record in read if record.position <= last]
        wanted = [record for record in records if self._is_replayed(record, command)]
        if not wanted:
            progress.at = records[-1].position if records else last
        else:
            written = await self._replay_writer.write(wanted)
            progress.at = wanted[written.done - 1].position
            progress.replayed += written.done - len(written.given_up) - len(written.left_out)
            progress.given_up_again += len(written.given_up)
            for index, given_up in written.given_up.items():
                letters.append(await self._make_letter(step, progress, wanted[index], given_up))
        if progress.at >= last:
            progress.finish(command.number)
        return letters

    def _is_replayed(self, record: Record, command: Replay) -> bool:
        return self._passes(record) and (command.keys is None or record.envelope().key in command.keys)

    async def _make_letter(self, step: Step, progress: Progress, record: Record, given_up: GivenUp) -> DeadLetter:
        return await self._letters.make(step, progress, record, given_up, max_bytes=self.max_letter_bytes)

    async def _progress(self, state: State, began: int) -> Progress:
        return await PROGRESS.load(state, self.sink.name) or Progress(began)

    async def _tried(self, work: Awaitable[_T]) -> _T:
        """Await work of the sink, and keep its failure for `ingestd sinks status`."""
        try:
            result = await work
        except (Unavailable, LeaseLost):  # the store failed, not the sink
            raise
        except Exception as error:
            at, before = times.now(), self._last_failure
            since, failures = (at, 0) if before is None else (before.since, before.failures)
            self._last_failure = LastFailure(reason_of(error), since, at, failures + 1)
            raise
        self._last_failure = None
        return result
