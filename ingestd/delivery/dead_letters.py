"""Records that a sink does not get: kept until somebody has them tried again, or throws them away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import msgspec

from ingestd.api.events import Record
from ingestd.api.store import State, state_key

__all__ = ["DeadLetter", "read_letter", "read_letters", "remove_letter", "replace_letter", "save_dead_letter"]

_PAGE = 100
_PAGE_BYTES = 2 << 20
_FIRST = 4  # letters of the first page: they may be large


class DeadLetter(msgspec.Struct):
    number: int
    """From 1, of each sink."""
    reason: str
    at: int
    """When it was given up last, in milliseconds."""
    attempts: int
    """Writes that it was in and that failed."""
    type: str
    position: int
    received_at: int
    record: msgspec.Raw
    """The record as the journal had it."""

    def to_record(self) -> Record:
        return Record(self.type, self.received_at, bytes(self.record), self.position)

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return len(memoryview(self.record))


_decode = msgspec.json.Decoder(DeadLetter).decode


def _encode(letter: DeadLetter) -> str:
    return msgspec.json.encode(letter).decode()


def _key(sink: str, number: int) -> str:
    return state_key("dead-letter", "", f"{sink}:{number}")


async def save_dead_letter(state: State, sink: str, letter: DeadLetter) -> None:
    """Keep a letter, in place of one with its number."""
    await state.put(_key(sink, letter.number), _encode(letter))


async def read_letter(state: State, sink: str, number: int) -> DeadLetter | None:
    found = await state.get(_key(sink, number))
    return None if found is None else _decode(found)


async def read_letters(
    state: State, sink: str, after: int, last: int, numbers: Collection[int] | None = None
) -> AsyncIterator[DeadLetter]:
    """Those there are of the numbers (None: of all) behind `after`, up to `last`, in order."""
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


async def replace_letter(state: State, sink: str, letter: DeadLetter, body: bytes) -> bool:
    """Give its record another body; returns whether the letter was still there as it was read."""
    key = _key(sink, letter.number)
    found = await state.get(key)
    if found is None or _decode(found) != letter:
        return False
    return await state.swap(key, found, _encode(msgspec.structs.replace(letter, record=msgspec.Raw(body))))


async def remove_letter(state: State, sink: str, number: int) -> None:
    await state.delete(_key(sink, number))
