"""Batches into a sink: what it rejects, and the one record that keeps a batch from being taken, are told apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

import msgspec

from ..errors import SinkReject, SinkRetry, reason_of, storable
from ..events import Record
from ..records import length_of
from ..sink import Sink
from .options import SinkOptions

__all__ = ["BatchWriter", "Company", "GivenUp", "Written", "within"]

_PROBES = 2  # other records that are tried, each time, before it is believed that the sink takes nothing


class GivenUp(NamedTuple):
    reason: str
    attempts: int


class Written(NamedTuple):
    """How many of the records are done with, from the first, and which of these were given up, by index."""

    done: int
    given_up: dict[int, GivenUp]


class Company:
    """Other records a sink takes if it takes anything, for all who write to it."""

    last: Record | None
    """The last one that was taken."""
    had: Sequence[Record]
    """Some that it had before,"""
    ahead: Sequence[Record]
    """and the next ones to come, in order and without a gap."""
    missing: bool
    """Whether more of them are wanted."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.last, self.had, self.ahead, self.missing = None, (), (), False


class _Owner(msgspec.Struct, frozen=True):
    tenant: str | None = None
    anonymousId: str | None = None  # noqa: N815 - the member's name


_decode_owner = msgspec.json.Decoder(_Owner).decode


class BatchWriter:
    """Writes to one sink, in order, at most `batch` at once.

    A batch that fails `retry.attempts` times in a row is halved, again and again, until some of it is taken: at
    once as long as the sink takes another record meanwhile, else after a pause each time. A single record that
    still fails then is given up if the sink takes another one. If it does not, the sink is at fault: the failure
    is raised, the record comes again, and what failed until the sink takes something counts against no record.
    """

    def __init__(self, sink: Sink, options: SinkOptions, company: Company | None = None) -> None:
        self.splits = 0
        """Writes that failed and were made again at once, with fewer records."""
        self._company = company or Company()
        self._sink = sink
        self._timeout = float(options.timeout)
        self._attempts = options.retry.attempts
        self._most = options.batch.max_events
        self._most_bytes = int(options.batch.max_bytes)
        self._size = self._most
        self._failed: dict[int, int] = {}
        """The positions of what failed and comes again, each with how many writes failed that it was in."""
        self._excused = 0
        """So many of these were the sink's fault."""
        self._sink_fails = False
        """Whether nothing else was taken when that was last tried."""
        self._probed = 0

    async def write(self, records: Sequence[Record]) -> Written:
        """Write the first of the records, at least one. Raises what the sink raises, or `SinkRetry`."""
        if self._failed and records[0].position not in self._failed:  # what failed has gone, or others come first
            self.forget()
        takes_others = False
        while True:
            batch = self._first(records)
            try:
                given_up = await self._deliver(batch)
            except Exception:
                self._count_failure(batch)
                if not self._is_suspected(batch[0]):
                    raise
                if len(batch) == 1 or not takes_others:  # before one is given up it is asked anew
                    sink_failed, takes_others = self._sink_fails, await self._takes_others(records)
                    if takes_others and sink_failed:  # it is back
                        self._excused = self._failed[batch[0].position]
                        raise
                if len(batch) > 1:
                    self._size = len(batch) // 2
                if not takes_others:
                    raise
                if len(batch) > 1:
                    self.splits += 1
                    continue
                given_up = await self._last_attempt(batch)
            self._went_on(batch)
            return Written(len(batch), given_up)

    def forget(self) -> None:
        """Hold nothing against any record."""
        self._failed = {}
        self._excused = 0
        self._sink_fails = False
        self._size = self._most

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
                self._company.last = batch[left[-1]]
                break
        return given_up

    async def _write(self, batch: Sequence[Record]) -> None:
        await within(self._timeout, self._sink.write(batch), "a write")

    async def _takes_others(self, records: Sequence[Record]) -> bool:
        """Whether the sink takes something else than the first of the records."""
        for probe in self._probes(records):
            try:
                await self._write([probe])
            except Exception:  # noqa: BLE001, S112 - that it fails is the answer
                continue
            self._company.last = probe
            self._sink_fails = False
            return True
        self._sink_fails = self._company.missing = True
        return False

    def _probes(self, records: Sequence[Record]) -> Iterable[Record]:
        """The last record it took, what it had before, or what comes of other visitors; not the same ones each time.

        These come again in their turn. One of the same visitor might come before what it follows.
        """
        company, suspect = self._company, records[0].position
        last = [each for each in (company.last,) if each is not None and each.position != suspect]
        others = [each for each in company.had if each.position != suspect]
        others += _others(records[0], [*records[1:], *company.ahead])
        start, count = self._probed, min(_PROBES - len(last), len(others))
        self._probed += count
        return [*last, *(others[(start + number) % len(others)] for number in range(count))]

    async def _last_attempt(self, batch: Sequence[Record]) -> dict[int, GivenUp]:
        """Once more, since it may have been the sink's moment."""
        try:
            return await self._deliver(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is not taken and others are
            return {0: self._give_up(batch[0], reason_of(error))}

    def _give_up(self, record: Record, reason: str) -> GivenUp:
        return GivenUp(reason, self._failed.get(record.position, 0) + 1)

    def _count_failure(self, batch: Sequence[Record]) -> None:
        for record in batch:
            self._failed[record.position] = self._failed.get(record.position, 0) + 1

    def _is_suspected(self, record: Record) -> bool:
        return self._failed.get(record.position, 0) - self._excused >= self._attempts

    def _went_on(self, batch: Sequence[Record]) -> None:
        if self._sink_fails or not self._is_suspected(batch[-1]):
            self.forget()
        else:  # the next failure among those that were in a batch with it is halved at once
            self._size = min(self._size * 2, self._most)


async def within(seconds: float, work: Awaitable[None], what: str) -> None:
    """Await work of a sink for that long. Raises `SinkRetry` when it takes longer, or ends by being cancelled."""
    limit = asyncio.timeout(seconds)
    task = asyncio.current_task()
    assert task is not None
    try:
        async with limit:
            await work
    except TimeoutError as error:
        if not limit.expired():  # a TimeoutError of the sink's own
            raise
        raise SinkRetry(f"{what} took longer than {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise SinkRetry(f"{what} was cancelled from within the sink") from error


def _others(suspect: Record, records: Iterable[Record]) -> list[Record]:
    """The first record of each visitor but one."""
    seen = {_owner_of(suspect)}
    found: list[Record] = []
    for record in records:
        owner = _owner_of(record)
        if owner not in seen:
            seen.add(owner)
            found.append(record)
    return found


def _owner_of(record: Record) -> _Owner:
    try:
        return _decode_owner(record.body)
    except msgspec.DecodeError:  # a plugin's own record, in which the name means something else
        return _Owner()


def _checked(error: SinkReject, count: int) -> dict[int, str]:
    reasons = dict(error.reasons)
    wrong = [index for index in reasons if type(index) is not int or index not in range(count)]
    if wrong or not reasons:
        named = f"record {wrong[0]!r}" if wrong else "no record"
        raise SinkRetry(f"its SinkReject names {named} of a batch of {count}") from error
    return {index: storable(str(reason)) for index, reason in reasons.items()}
