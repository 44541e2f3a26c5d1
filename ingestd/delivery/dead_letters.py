"""Dead letters: records that a sink did not take, kept until an operator retries or discards them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import msgspec

from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.api.store import State, StoredValue, state_key
from ingestd.support.record_head import read_head

__all__ = [
    "BYTES_KIND",
    "RECORD_GONE",
    "DeadLetter",
    "add_letter_bytes",
    "change_letter",
    "load_letter_bytes",
    "make_letter",
    "measure_letters",
    "newest_letters",
    "read_letter",
    "read_letters",
    "remove_letter",
    "save_dead_letter",
    "whole_record",
]

_ERASURE_REASON = "the sink did not take this erasure; its answer may name the person, so only the log has it"
BYTES_KIND = "dead-letter-bytes"
RECORD_GONE = "its record is in the journal no more, and was not kept: dead letters had reached [store] max_size"

_PAGE = 100
_PAGE_BYTES = 2 << 20
_FIRST = 4  # letters of the first page, since letters may be large
_MOST_LOOKED_UP = 5_000  # numbers that one search for the newest letters looks up, since most may be retried


class DeadLetter(msgspec.Struct):
    number: int
    """The number of the letter, counted from 1 for each sink."""
    reason: str
    at: int
    """When the record was last given up, in milliseconds."""
    attempts: int
    """The number of failed writes that contained the record."""
    type: str
    position: int
    received_at: int
    record: msgspec.Raw
    """The body of the record in the journal, or only its ids if it was left out."""
    omitted: int = 0
    """The size of the record in bytes if it was left out, because the dead letters of the sink were large; else 0."""

    def to_record(self) -> Record:
        return Record(self.type, self.received_at, bytes(self.record), self.position)

    @property
    def size(self) -> int:
        """What the letter has of the record, in bytes."""
        return len(memoryview(self.record))

    @property
    def record_size(self) -> int:
        """The size of the record in bytes."""
        return self.omitted or self.size


_KEPT = ("id", "key", "tenant", "anonymousId", "userId")
"""The members that stay of a record that is left out. `ingestd forget` finds the person by them."""
_LONGEST = 512  # characters of an id that stays

_LETTERS = StoredValue("dead-letter", DeadLetter)


def _key(sink: str, number: int) -> str:
    return _LETTERS.key(_name(sink, number))


def _name(sink: str, number: int) -> str:
    return f"{sink}:{number}"


def make_letter(number: int, record: Record, reason: str, *, at: int, attempts: int, room: float) -> DeadLetter:
    """A letter with the record, or without it if the record is larger than `room`, in bytes."""
    body, omitted = record.body, 0
    if len(body) > room:
        head = read_head(body)
        ids = dict(zip(_KEPT, (head.id, head.key, head.tenant, head.visitor, head.user), strict=True))
        kept = {name: text for name, text in ids.items() if text is not None and len(text) <= _LONGEST}
        body, omitted = msgspec.json.encode(kept), len(body)
    return DeadLetter(number, reason, at, attempts, record.type, record.position, record.at, msgspec.Raw(body), omitted)


async def whole_record(letter: DeadLetter, journal: Journal) -> Record | None:
    """The record of a letter. One that was left out is read from the journal; None if it is there no more.

    Raises `Unavailable`.
    """
    if not letter.omitted:
        return letter.to_record()
    for record in await journal.read(letter.position - 1, 1):
        there = record.position, record.at, record.type, read_head(record.body).id
        if there == (letter.position, letter.received_at, letter.type, read_head(bytes(letter.record)).id):
            return record
    return None


async def load_letter_bytes(state: State, sink: str) -> int | None:
    """What the letters of a sink have of their records, in bytes; None if an earlier version has not counted it."""
    found = await state.get(state_key(BYTES_KIND, "", sink))
    return None if found is None else int(found)


async def add_letter_bytes(state: State, sink: str, size: int) -> None:
    """Count a letter, or with a negative size the removal of one. `ingestd forget` changes sizes, uncounted."""
    await state.put(state_key(BYTES_KIND, "", sink), str(max(0, (await load_letter_bytes(state, sink) or 0) + size)))


async def measure_letters(state: State, sink: str, last: int) -> int:
    """Count all letters up to a number once, by reading all of them. Returns their bytes."""
    size = 0
    async for letter in read_letters(state, sink, 0, last):
        size += letter.size
        state.release(keys=[_key(sink, letter.number)])
    await add_letter_bytes(state, sink, size)
    return size


async def save_dead_letter(state: State, sink: str, letter: DeadLetter) -> None:
    """Store a letter. It replaces a letter with the same number.

    The reason of an erasure is not stored: a sink may quote the person, and no later erasure would find that.
    """
    if letter.type == "erasure":
        letter = msgspec.structs.replace(letter, reason=_ERASURE_REASON)
    await _LETTERS.save(state, letter, _name(sink, letter.number))


async def read_letter(state: State, sink: str, number: int) -> DeadLetter | None:
    return await _LETTERS.load(state, _name(sink, number))


async def read_letters(
    state: State, sink: str, after: int, last: int, numbers: Collection[int] | None = None
) -> AsyncIterator[DeadLetter]:
    """The existing letters after number `after` and up to `last`, in order. `numbers` selects some of them."""
    asked: Sequence[int] = range(after + 1, last + 1)
    if numbers is not None:
        asked = sorted({number for number in numbers if after < number <= last})
    async for page in _pages(state, sink, asked):
        while page:
            _, letter = page.pop(0)
            if letter is not None:
                yield letter


async def newest_letters(state: State, sink: str, last: int, most: int) -> tuple[list[DeadLetter], int | None]:
    """At most `most` letters with numbers up to `last`, newest first, and fewer if they are large.

    The second value is the number below which a later call goes on, or None at the end.
    """
    found: list[DeadLetter] = []
    size, below = 0, last + 1
    async for page in _pages(state, sink, range(last, max(0, last - _MOST_LOOKED_UP), -1)):
        for below, letter in page:
            if letter is not None:
                found.append(letter)
                size += letter.size
            if len(found) == most or size >= _PAGE_BYTES:
                return found, below if below > 1 else None
        state.release(keys=[_key(sink, number) for number, _ in page])
    return found, below if below > 1 else None


async def _pages(state: State, sink: str, asked: Sequence[int]) -> AsyncIterator[list[tuple[int, DeadLetter | None]]]:
    """The letters with these numbers, a few together, and fewer if they are large. Only the caller keeps them."""
    start, most = 0, _FIRST
    while start < len(asked):
        page = asked[start : start + most]
        letters = await asyncio.gather(*(read_letter(state, sink, number) for number in page))
        found = [*zip(page, letters, strict=True)]
        size = sum(letter.size for letter in letters if letter is not None)
        start, most = start + len(page), min(_PAGE, max(1, _PAGE_BYTES * len(page) // max(size, 1)), 2 * most)
        del letters
        yield found


async def change_letter(state: State, sink: str, letter: DeadLetter, changed: DeadLetter) -> bool:
    """Replace a letter. Return False if it has changed or gone since it was read."""
    key = _key(sink, letter.number)
    found = await state.get(key)
    if found is None or _LETTERS.decode(found) != letter:
        return False
    return await state.swap(key, found, _LETTERS.encode(changed))


async def remove_letter(state: State, sink: str, number: int) -> None:
    await state.delete(_key(sink, number))
