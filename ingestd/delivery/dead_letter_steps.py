"""What a step of a sink does to dead letters: it makes them, and retries or discards them for operators."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api import times
from ingestd.api.consumer import Step
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.store import State
from ingestd.consumers.erasures import REMOVED

from .batch_writer import BatchWriter, GivenUp
from .dead_letters import (
    RECORD_GONE,
    DeadLetter,
    add_letter_bytes,
    load_letter_bytes,
    make_letter,
    read_letters,
    remove_letter,
    save_dead_letter,
    whole_record,
)
from .operator_commands import Discard, Retry
from .progress import Progress

__all__ = ["DeadLetterSteps"]

_BLANK = b'"erased":true'
_DISCARDED = 1000  # dead letters discarded in one step
_READ_SIZE = 2 << 20  # the approximate size of the dead letters in memory, in bytes


class DeadLetterSteps:
    """The steps of one sink. `most` is the most letters that one step retries."""

    def __init__(self, sink: str, most: int) -> None:
        self._sink = sink
        self._most = most

    async def make(
        self, step: Step, progress: Progress, record: Record, given_up: GivenUp, *, max_bytes: float
    ) -> DeadLetter:
        """Store a record as a dead letter. It is left out if all letters would have more than `max_bytes`."""
        state, present = step.state, await step.read_again(record)
        if present.body != record.body and _BLANK in present.body:
            record, given_up = present, given_up._replace(reason=REMOVED)
        progress.letters += 1
        size = await load_letter_bytes(state, self._sink) or 0
        letter = make_letter(
            progress.letters, record, given_up.reason,
            at=times.now(), attempts=given_up.attempts, room=max_bytes - size,
        )  # fmt: skip
        await add_letter_bytes(state, self._sink, letter.size)
        await save_dead_letter(state, self._sink, letter)
        return letter

    async def carry_out(
        self, command: Retry | Discard, state: State, progress: Progress, journal: Journal, writer: BatchWriter
    ) -> None:
        """Do a part of a command, as far as one step goes. `writer` writes the letters of a retry."""
        letters = await self._next_letters(command, state, progress)
        if not letters:
            progress.finish(command.number)
        elif isinstance(command, Retry):
            await self._retry(letters, state, progress, journal, writer)
        else:
            for letter in letters:
                await self._remove(letter, state)
            progress.discarded += len(letters)
            progress.at = letters[-1].number

    async def _next_letters(self, command: Retry | Discard, state: State, progress: Progress) -> Sequence[DeadLetter]:
        most = self._most if isinstance(command, Retry) else _DISCARDED
        letters: list[DeadLetter] = []
        size, last = 0, min(command.last, progress.letters)
        async for letter in read_letters(state, self._sink, progress.at, last, command.letters):
            letters.append(letter)
            size += letter.record_size
            if len(letters) == most or size >= _READ_SIZE:
                break
        return letters

    async def _retry(
        self, letters: Sequence[DeadLetter], state: State, progress: Progress, journal: Journal, writer: BatchWriter
    ) -> None:
        records: list[Record] = []
        for letter in letters:
            record = await whole_record(letter, journal)
            if record is None:
                break
            records.append(record)
        if not records:  # further letters come with the next step
            if RECORD_GONE not in letters[0].reason:
                letters[0].reason = f"{RECORD_GONE}; {letters[0].reason}"
                await save_dead_letter(state, self._sink, letters[0])
            progress.at = letters[0].number
            return
        written = await writer.write(records)
        for index, letter in enumerate(letters[: written.done]):
            given_up = written.given_up.get(index)
            if given_up is None:
                await self._remove(letter, state)
                progress.retried += 1
            else:
                letter.reason, letter.at = given_up.reason, times.now()
                letter.attempts += given_up.attempts
                await save_dead_letter(state, self._sink, letter)
        progress.at = letters[written.done - 1].number

    async def _remove(self, letter: DeadLetter, state: State) -> None:
        await remove_letter(state, self._sink, letter.number)
        await add_letter_bytes(state, self._sink, -letter.size)
