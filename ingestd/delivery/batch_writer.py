"""Writes batches to a sink. It finds rejected records, and the one record that makes every write fail."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from ingestd.api.errors import SinkFailure, SinkReject, SinkRetry, reason_of, storable
from ingestd.api.events import Record
from ingestd.api.record_batch import Batch, length_of
from ingestd.api.sink import Sink

from .evidence import Evidence
from .options import SinkOptions
from .shared_sink import SharedSink, within
from .transforms import RecordTransform

__all__ = ["BatchWriter", "GivenUp", "LetterWriter", "StepResult", "WriteBatch", "Written"]

WriteBatch = Callable[[Sequence[Record]], Awaitable[None]]

_PROBES = 2  # other records that are tried each time before the sink counts as failing


class GivenUp(NamedTuple):
    reason: str
    attempts: int


class Written(NamedTuple):
    """The number of completed records, from the first, and the given-up records among them by index."""

    done: int
    given_up: dict[int, GivenUp]
    left_out: Collection[int] = ()
    """The indexes of the completed records that the transform left out."""
    failure: Exception | None = None
    """Why the records after the completed ones were not written, if the sink took only a first part."""


class StepResult(NamedTuple):
    """The result of a write: the records of a step, the indexes of those that pass the filter, and how these ended."""

    records: Sequence[Record]
    wanted: Sequence[int]
    written: Written

    @property
    def done(self) -> int:
        """The number of processed records, from the first."""
        return len(self.records) if self.written.done == len(self.wanted) else self.wanted[self.written.done]

    @property
    def delivered(self) -> int:
        return self.written.done - len(self.written.given_up) - len(self.written.left_out)

    @property
    def filtered(self) -> int:
        """The number of processed records that the filter excluded or the transform left out."""
        return self.done - self.written.done + len(self.written.left_out)

    @property
    def given_up(self) -> list[tuple[Record, GivenUp]]:
        return [(self.records[self.wanted[at]], given_up) for at, given_up in self.written.given_up.items()]


class BatchWriter:
    """Writes records to one sink, in order, in batches within the limits of `batch`.

    `SinkRetry` is a failure of the sink and counts against no record. The next batch has fewer records, because the
    sink may have room for some.

    After any other failure, a record may be at fault. A batch that fails `retry.attempts` times in a row is halved at
    once. This is repeated until the sink takes a part, or one record is left that fails alone.

    That record is given up if the sink takes another record between two of its failures. The other record must be new
    to the sink. To find out, the writer tries a record of another visitor: a probe. If the sink refuses probes too, it
    may be failing and still take a record now and then. Then the sink must take other records `retry.attempts` times,
    and at least twice. Without a record to try, the failure is raised, and the record waits.

    A sink with stable batches gets a failed batch again as it was, until it is halved.
    """

    def __init__(
        self,
        sink: Sink,
        options: SinkOptions,
        evidence: Evidence | None = None,
        *,
        in_turn: bool = True,
        transform: RecordTransform | None = None,
        write: WriteBatch | None = None,
        shared: SharedSink | None = None,
        partition: str = "",
    ) -> None:
        """`in_turn`: the records come in journal order, after the sink's cursor. `write` replaces the sink's own.

        `shared` has the turns of the sink. `partition` is the name of the partition of the records.
        """
        self.splits = 0
        """The number of failed writes that were repeated at once, with fewer records."""
        self.is_ended = False
        """Whether the daemon stops, so that no further write begins."""
        self._evidence = evidence or Evidence()
        self._in_turn = in_turn
        self._sink = sink
        self._shared = SharedSink(sink, float(options.timeout)) if shared is None else shared
        self._partition = partition
        self._write_batch = write or sink.write
        self._transform = transform
        self._timeout = float(options.timeout)
        self._attempts = options.retry.attempts
        self._most = options.batch.max_events
        self._most_bytes = int(options.batch.max_bytes)
        self._refuses_others = False
        """Whether the sink has refused probes, and has taken nothing at the first attempt since then."""
        self.forget()

    def forget(self) -> None:
        """Forget the failures of all records."""
        self._size = self._most
        self._interruption: Exception | None = None
        """The failure after a first part of a batch was taken. The next write raises it, so that a pause follows."""
        self._failed: dict[int, int] = {}
        """The positions of records to be written again, each with its number of failed writes."""
        self._tried: dict[int, int] = {}
        """The positions of failed probes, each with a number that grows with every attempt."""
        self._begin_proof()

    def _begin_proof(self) -> None:
        self._taken_before: int | None = None
        """`Evidence.taken` at the time when the first record last failed alone."""
        self._proofs = 0
        """How often the sink took other records between two failures of the first record alone."""

    def first(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records of the next batch."""
        self._forget_others(records)
        batch = records[: self._size]
        if self._failed:  # only records of the failed batch
            batch = [*takewhile(lambda record: record.position in self._failed, batch)]
        if length_of(batch) <= self._most_bytes:
            return batch
        ends = accumulate(len(record.body) for record in batch)
        return batch[: max(1, sum(1 for end in ends if end <= self._most_bytes))]

    async def write(self, records: Sequence[Record], end: int | None = None) -> Written:
        """Write the first records, at least one. Raises the exception of the sink, or `SinkFailure`.

        `end` is the position of the last record of a stable batch.
        """
        self._forget_others(records)
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        while True:
            batch = self.first(records) if end is None else self._part(records, end)
            try:
                written = await self._deliver(batch)
            except SinkRetry:
                if end is None:
                    self._size = max(1, len(batch) // 2)  # the sink may have room for some
                raise
            except Exception as error:
                self._count_failure(batch)
                if not self._is_suspected(batch[0]):
                    raise
                if len(batch) > 1:
                    self._size = len(batch) // 2
                    self.splits += 1
                    continue
                others_taken = await self._takes_others(records)
                if not self._is_at_fault():
                    if others_taken:
                        continue
                    raise
                written = Written(1, {0: self._give_up(batch[0], reason_of(error))})
                self._refuses_others = False
            self._went_on(batch[: written.done])
            if written.failure is not None:
                if not isinstance(written.failure, SinkRetry):
                    self._count_failure(batch[written.done :])
                self._interruption = written.failure
            return written

    def _forget_others(self, records: Sequence[Record]) -> None:
        """Forget failures of other records, which are gone or come later."""
        if self._failed and records[0].position not in self._failed:
            self.forget()

    def _part(self, records: Sequence[Record], end: int) -> Sequence[Record]:
        """The stable batch, or its first half after failures."""
        batch = records[: bisect_right(records, end, key=lambda record: record.position)]
        return batch[: self._size] if self._size < self._most else batch

    async def _deliver(self, batch: Sequence[Record], *, is_probe: bool = False) -> Written:
        """Write a batch without the records that the sink rejects, and without the rest after a partial write."""
        given_up: dict[int, GivenUp] = {}
        left_out: Collection[int] = ()
        left: Sequence[int] = range(len(batch))
        records = batch
        if self._transform is not None:
            records, left_out, reasons = await self._transform.apply(batch)
            given_up = {index: self._give_up(batch[index], reason) for index, reason in reasons.items()}
            left = [index for index in left if index not in given_up and index not in left_out]
        is_partial = False
        while left:
            some = records if len(left) == len(batch) else [records[index] for index in left]
            try:
                await self._write(some)
            except SinkReject as error:
                rejected = _checked(error, len(left))
                written = _written_of(error, len(left))
                is_partial = is_partial or written > 0
                for at, reason in rejected.items():
                    given_up[left[at]] = self._give_up(batch[left[at]], reason)
                left = [index for at, index in enumerate(left) if at >= written and at not in rejected]
            except Exception as error:
                written = _written_of(error, len(left))
                if not is_partial and not written:
                    raise
                done = left[written] if written < len(left) else len(batch)
                given_up = {index: each for index, each in given_up.items() if index < done}
                return Written(done, given_up, [index for index in left_out if index < done], error)
            else:
                if self._in_turn and not is_probe:
                    self._evidence.add_taken(some)
                break
        return Written(len(batch), given_up, left_out)

    async def _write(self, batch: Sequence[Record]) -> None:
        batch = Batch(batch, self._partition) if self._sink.stable_batches else batch
        async with self._shared.turn:
            if not self.is_ended:
                await within(self._timeout, self._write_batch(batch), "a write")
                return
        await asyncio.Event().wait()  # until the cancellation

    async def _takes_others(self, records: Sequence[Record]) -> bool | None:
        """Whether the sink takes other records than the first, which failed alone; None if that is unknown."""
        taken = self._evidence.taken
        self._proofs += self._taken_before is not None and self._taken_before < taken
        self._taken_before = taken
        return await self._probe(records)

    def _is_at_fault(self) -> bool:
        """Whether the first record is at fault. Without evidence the sink is at fault."""
        return self._proofs >= (max(2, self._attempts) if self._refuses_others else 1)

    async def _probe(self, records: Sequence[Record]) -> bool | None:
        """Whether the sink takes a record of another visitor; None without such a record. It is written again later."""
        refused = False
        for probe in self._choose_probes(records):
            try:
                written = await self._deliver([probe], is_probe=True)
            except Exception:  # noqa: BLE001 - the failure is the answer
                refused = True
            else:
                if not written.given_up and not written.left_out:  # else neither taken nor a failure of the sink
                    self._evidence.add_probe(probe)
                    if probe.position in self._tried:
                        self._excuse()  # the sink failed on this record before, so the sink was at fault
                    return True
            self._tried[probe.position] = max(self._tried.values(), default=0) + 1
        self._evidence.wanted = True
        self._refuses_others = self._refuses_others or refused
        return False if refused else None

    def _choose_probes(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records for a probe: first the untried ones, then the tried ones, longest ago first."""
        others = self._evidence.find_probes(records if self._in_turn else records[:1], self._failed)
        new = [record for record in others if record.position not in self._tried]
        known = [record for record in others if record.position in self._tried]
        known.sort(key=lambda record: self._tried[record.position])
        # If the sink takes a record that it refused before, it takes records now and then.
        first = known[:1] if self._refuses_others else []
        return [*first, *new, *known[len(first) :]][:_PROBES]

    def _excuse(self) -> None:
        """Start counting failures again, because the sink was at fault."""
        self._failed = dict.fromkeys(self._failed, 0)
        self._tried = {}
        self._begin_proof()

    def _give_up(self, record: Record, reason: str) -> GivenUp:
        return GivenUp(reason, max(1, self._failed.get(record.position, 0)))

    def _count_failure(self, batch: Sequence[Record]) -> None:
        for record in batch:
            self._failed[record.position] = self._failed.get(record.position, 0) + 1

    def _went_on(self, batch: Sequence[Record]) -> None:
        self._begin_proof()
        if self._in_turn:
            self._evidence.delivered_up_to(batch[-1].position)
        self._refuses_others = self._refuses_others and bool(self._failed)
        size = min(self._size * 2, self._most)
        if self._refuses_others or not self._is_suspected(batch[-1]):
            self.forget()  # otherwise the next failure of a record from the same batch halves the batch at once
        self._size = size

    def _is_suspected(self, record: Record) -> bool:
        return self._failed.get(record.position, 0) >= self._attempts


class LetterWriter(BatchWriter):
    """Writes dead letters again, and is made with `in_turn=False`.

    It waits only for a sink that is known to fail, because giving up loses nothing.
    """

    _sink_fails = False

    async def _takes_others(self, records: Sequence[Record]) -> bool | None:
        others_taken = await super()._takes_others(records)
        if others_taken is None:
            others_taken = await self._check()
        self._sink_fails = not others_taken
        return others_taken

    async def _check(self) -> bool:
        try:
            await self._shared.check()
        except Exception:  # noqa: BLE001 - the failure is the answer
            return False
        return True

    def _is_at_fault(self) -> bool:
        return not self._sink_fails


def _checked(error: SinkReject, count: int) -> dict[int, str]:
    reasons = dict(error.reasons)
    wrong = [index for index in reasons if type(index) is not int or index not in range(count)]
    if wrong or not reasons:
        named = f"record {wrong[0]!r}" if wrong else "no record"
        raise SinkFailure(f"its SinkReject names {named} of a batch of {count}; {error.takes}") from error
    return {index: storable(str(reason)) for index, reason in reasons.items()}


def _written_of(error: Exception, count: int) -> int:
    """How many records of a batch of `count` are durable, from the first, although the write failed."""
    written = error.written if isinstance(error, SinkRetry | SinkReject | SinkFailure) else 0
    if type(written) is not int or not 0 <= written <= count:
        raise SinkFailure(f"it says that {written!r} records of a batch of {count} are written") from error
    return written
