"""Batches into a sink: rejected records, and the one record that makes every write fail, are told apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from ingestd.api.errors import SinkFailure, SinkReject, SinkRetry, reason_of, storable
from ingestd.api.events import Record
from ingestd.api.record_batch import length_of
from ingestd.api.sink import Sink

from .evidence import Evidence
from .options import SinkOptions

__all__ = ["BatchWriter", "GivenUp", "LetterWriter", "Written", "within"]

_PROBES = 2  # records that are tried, each time, before it is believed that the sink takes nothing new


class GivenUp(NamedTuple):
    reason: str
    attempts: int


class Written(NamedTuple):
    """How many of the records are done with, from the first, and which of these were given up, by index."""

    done: int
    given_up: dict[int, GivenUp]


class BatchWriter:
    """Writes to one sink, in order, at most `batch` at once.

    `SinkRetry` is the sink's own trouble and counts against no record; fewer records are tried next, for there may be
    room for some. After any other failure a record may be at
    fault: a batch that fails `retry.attempts` times in a row is halved at once, until a part is taken or one record
    is left that fails alone.

    That record is given up if the sink takes a record that it never had, between two failures of the one. To find
    out, a record of another visitor is tried: a probe. If the sink refuses probes as well, it may have trouble and
    take a record now and then: then this must happen `retry.attempts` times. Where there is no record to try, the
    failure is raised and the record waits.
    """

    def __init__(
        self, sink: Sink, options: SinkOptions, evidence: Evidence | None = None, *, in_turn: bool = True
    ) -> None:
        """`in_turn` says that records are those behind the sink's place in the journal, in order."""
        self.splits = 0
        """Writes that failed and were made again at once, with fewer records."""
        self._evidence = evidence or Evidence()
        self._in_turn = in_turn
        self._sink = sink
        self._timeout = float(options.timeout)
        self._attempts = options.retry.attempts
        self._most = options.batch.max_events
        self._most_bytes = int(options.batch.max_bytes)
        self._refuses_others = False
        """Whether the sink has refused probes, and since then taken nothing at the first attempt."""
        self.forget()

    def forget(self) -> None:
        """Hold nothing against any record."""
        self._size = self._most
        self._failed: dict[int, int] = {}
        """The positions of records that come again, each with its number of failed writes."""
        self._tried: dict[int, int] = {}
        """The order in which probes that were not taken were tried last, by position."""
        self._begin_proof()

    def _begin_proof(self) -> None:
        self._taken_before: int | None = None
        """`Evidence.taken` when the first record failed alone the last time."""
        self._proofs = 0
        """How often the sink took other records between two failures of the first one alone."""

    async def write(self, records: Sequence[Record]) -> Written:
        """Write the first of the records, at least one. Raises what the sink raises, or `SinkFailure`."""
        if self._failed and records[0].position not in self._failed:  # what failed has gone, or others come first
            self.forget()
        while True:
            batch = self._first(records)
            try:
                given_up = await self._deliver(batch)
            except SinkRetry:
                self._size = max(1, len(batch) // 2)  # there may be room for some
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
                given_up = {0: self._give_up(batch[0], reason_of(error))}
                self._refuses_others = False
            self._went_on(batch)
            return Written(len(batch), given_up)

    def _first(self, records: Sequence[Record]) -> Sequence[Record]:
        batch = records[: self._size]
        if self._failed:  # it is that again, or some of it
            batch = [*takewhile(lambda record: record.position in self._failed, batch)]
        if length_of(batch) <= self._most_bytes:
            return batch
        ends = accumulate(len(record.body) for record in batch)
        return batch[: max(1, sum(1 for end in ends if end <= self._most_bytes))]

    async def _deliver(self, batch: Sequence[Record]) -> dict[int, GivenUp]:
        """All of a batch, but for what the sink rejects: that is returned, by index."""
        given_up: dict[int, GivenUp] = {}
        left: Sequence[int] = range(len(batch))
        while left:
            try:
                some = batch if len(left) == len(batch) else [batch[index] for index in left]
                await self._write(some)
            except SinkReject as error:
                rejected = _checked(error, len(left))
                for at, reason in rejected.items():
                    given_up[left[at]] = self._give_up(batch[left[at]], reason)
                left = [index for at, index in enumerate(left) if at not in rejected]
            else:
                if self._in_turn:
                    self._evidence.add_taken(some)
                break
        return given_up

    async def _write(self, batch: Sequence[Record]) -> None:
        await within(self._timeout, self._sink.write(batch), "a write")

    async def _takes_others(self, records: Sequence[Record]) -> bool | None:
        """Whether the sink takes others than the first record, which failed alone; None where nothing tells."""
        taken = self._evidence.taken
        self._proofs += self._taken_before is not None and self._taken_before < taken
        self._taken_before = taken
        return await self._probe(records)

    def _is_at_fault(self) -> bool:
        """Whether the first record is, rather than the sink, which it is when nothing tells."""
        return self._proofs >= (max(2, self._attempts) if self._refuses_others else 1)

    async def _probe(self, records: Sequence[Record]) -> bool | None:
        """Whether the sink takes a record of another visitor, which comes again in its turn; None: there is none."""
        refused = False
        for probe in self._choose_probes(records):
            try:
                await self._write([probe])
            except SinkReject:  # neither taken nor refused for now
                pass
            except Exception:  # noqa: BLE001 - that it fails is the answer
                refused = True
            else:
                self._evidence.add_probe(probe)
                if probe.position in self._tried:
                    self._excuse()  # the sink refused it before, so it was the sink
                return True
            self._tried[probe.position] = max(self._tried.values(), default=0) + 1
        self._evidence.wanted = True
        self._refuses_others = self._refuses_others or refused
        return False if refused else None

    def _choose_probes(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records that were not tried yet, then those that were not tried for longest."""
        others = self._evidence.find_probes(records if self._in_turn else records[:1], self._failed)
        new = [record for record in others if record.position not in self._tried]
        known = [record for record in others if record.position in self._tried]
        known.sort(key=lambda record: self._tried[record.position])
        # If one is taken now that was refused, the sink takes records now and then.
        first = known[:1] if self._refuses_others else []
        return [*first, *new, *known[len(first) :]][:_PROBES]

    def _excuse(self) -> None:
        """Count failures from now on, since the sink was at fault."""
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
            self.forget()  # else the next failure among those that were in a batch with it is halved at once
        self._size = size

    def _is_suspected(self, record: Record) -> bool:
        return self._failed.get(record.position, 0) >= self._attempts


class LetterWriter(BatchWriter):
    """Writes dead letters again. Giving one up loses nothing, so only a sink that is known to fail is waited for."""

    def __init__(self, sink: Sink, options: SinkOptions, evidence: Evidence) -> None:
        super().__init__(sink, options, evidence, in_turn=False)
        self._sink_fails = False

    async def _takes_others(self, records: Sequence[Record]) -> bool | None:
        others_taken = await super()._takes_others(records)
        if others_taken is None:
            others_taken = await self._check()
        self._sink_fails = not others_taken
        return others_taken

    async def _check(self) -> bool:
        try:
            await within(self._timeout, self._sink.check(), "a check")
        except Exception:  # noqa: BLE001 - that it fails is the answer
            return False
        return True

    def _is_at_fault(self) -> bool:
        return not self._sink_fails


async def within(seconds: float, work: Awaitable[None], what: str) -> None:
    """Await work of a sink for that long. Raises `SinkFailure` when it takes longer, or ends by being cancelled."""
    limit = asyncio.timeout(seconds)
    task = asyncio.current_task()
    assert task is not None
    try:
        async with limit:
            await work
    except TimeoutError as error:
        if not limit.expired():  # a TimeoutError of the sink's own
            raise
        raise SinkFailure(f"{what} took longer than {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise SinkFailure(f"{what} was cancelled from within the sink") from error


def _checked(error: SinkReject, count: int) -> dict[int, str]:
    reasons = dict(error.reasons)
    wrong = [index for index in reasons if type(index) is not int or index not in range(count)]
    if wrong or not reasons:
        named = f"record {wrong[0]!r}" if wrong else "no record"
        raise SinkFailure(f"its SinkReject names {named} of a batch of {count}; {error.takes}") from error
    return {index: storable(str(reason)) for index, reason in reasons.items()}
