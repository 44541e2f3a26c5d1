"""Dead letters: records that a sink did not take, kept until an operator retries or discards them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import msgspec

from ingestd.api.events import Record
from ingestd.api.store import State, state_key

__all__ = [
    "DeadLetter",
    "change_letter",
    "newest_letters",
    "read_letter",
    "read_letters",
    "remove_letter",
    "save_dead_letter",
]

_ERASURE_REASON = "the sink did not take this erasure; its answer may name the person, so only the log has it"

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
    """The body of the record in the journal."""

    def to_record(self) -> Record:
        return Record(self.type, self.received_at, bytes(self.record), self.position)

    @property
    def size(self) -> int:
        """The size of the record in bytes."""
        return len(memoryview(self.record))


_decode = msgspec.json.Decoder(DeadLetter).decode


def _encode(letter: DeadLetter) -> str:
    return msgspec.json.encode(letter).decode()


def _key(sink: str, number: int) -> str:
    return state_key("dead-letter", "", f"{sink}:{number}")


async def save_dead_letter(state: State, sink: str, letter: DeadLetter) -> None:
    """Store a letter. It replaces a letter with the same number.

    The reason of an erasure is not stored: a sink may quote the person, and no later erasure would find that.
    """
    if letter.type == "erasure":
        letter = msgspec.structs.replace(letter, reason=_ERASURE_REASON)
    await state.put(_key(sink, letter.number), _encode(letter))


async def read_letter(state: State, sink: str, number: int) -> DeadLetter | None:
    found = await state.get(_key(sink, number))
    return None if found is None else _decode(found)


async def read_letters(
    state: State, sink: str, after: int, last: int, numbers: Collection[int] | None = None
) -> AsyncIterator[DeadLetter]:
    """The existing letters after number `after` and up to `last`, in order. `numbers` selects some of them."""
    asked: Sequence[int] = range(after + 1, last + 1)
    if numbers is not None:
        asked = sorted({number for number in numbers if after < number <= last})
    start, most = 0, _FIRST
    while start < len(asked):
        page = asked[start : start + most]
        letters = await asyncio.gather(*(read_letter(state, sink, number) for number in page))
        size = sum(letter.size for letter in letters if letter is not None)
        start, most = start + len(page), min(_PAGE, max(1, _PAGE_BYTES * len(page) // max(size, 1)), 2 * most)
        while letters:
            letter = letters.pop(0)
            if letter is not None:
                yield letter


async def newest_letters(state: State, sink: str, last: int, most: int) -> tuple[list[DeadLetter], int | None]:
    """At most `most` letters with numbers up to `last`, newest first, and fewer if they are large.

    The second value is the number below which a later call goes on, or None at the end.
    """
    found: list[DeadLetter] = []
    number, size, page = last, 0, _FIRST
    while number > 0 and len(found) < most and size < _PAGE_BYTES and last - number < _MOST_LOOKED_UP:
        asked = range(number, max(0, number - page), -1)
        letters = await asyncio.gather(*(read_letter(state, sink, each) for each in asked))
        for each, letter in zip(asked, letters, strict=True):
            if len(found) == most or size >= _PAGE_BYTES:
                break
            number = each - 1
            if letter is not None:
                found.append(letter)
                size += letter.size
        state.release(keys=[_key(sink, each) for each in asked])
        seen = sum(letter.size for letter in letters if letter is not None)
        page = min(_PAGE, max(1, _PAGE_BYTES * page // max(seen, 1)), 2 * page)
    return found, number + 1 if number > 0 else None


async def change_letter(state: State, sink: str, letter: DeadLetter, changed: DeadLetter) -> bool:
    """Replace a letter. Return False if it has changed or gone since it was read."""
    key = _key(sink, letter.number)
    found = await state.get(key)
    if found is None or _decode(found) != letter:
        return False
    return await state.swap(key, found, _encode(changed))


async def remove_letter(state: State, sink: str, number: int) -> None:
    await state.delete(_key(sink, number))
