"""The description of a sink by its test module, and helpers for the tests of the suite."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ingestd.api.events import Record
from ingestd.api.sink import Sink

from .records import make_records, placed
from .writes import DeliveredSink

__all__ = ["SinkTraits", "in_new_loop", "opened", "skip"]

_T = TypeVar("_T")


class SinkTraits(ABC):
    """Test classes override the public members. The others are for the suite."""

    keeps_order: ClassVar[bool] = True
    """False if `read_back` cannot tell the order of writes."""

    exactly_once: ClassVar[bool] = False
    """True if the sink stores a batch once that comes again with its token, or a flush that comes again with its span.

    Then the suite checks this after crashes.
    """

    @abstractmethod
    def make_sink(self, folder: Path) -> Sink:
        """A sink, not yet open. All sinks of one folder write to the same target. Each test has a new folder."""

    @abstractmethod
    async def read_back(self, folder: Path) -> Sequence[Any]:
        """The content of the target in the order of writes. The item of a record is what `expected` returns.

        Items that are there twice must be returned twice, also after a repeated write.
        """

    def expected(self, record: Record) -> Any:
        """The item that `read_back` returns for a record: its decoded JSON object by default, None for no item."""
        return record.decode()

    def make_record(self, number: int, text: str) -> Record:
        """A record that the sink keeps. It has a new id, and holds `text` (up to a megabyte) anywhere."""
        names = {text: text} if len(text) < 100 else {}  # names of members are limited in length
        return make_records(1, data={"number": number, "text": text, **names})[0]

    async def interrupt(self, folder: Path) -> None:
        """Break the connection of an open sink, or the server behind it.

        Writes may fail for some seconds afterwards, until the connection works again. The suite calls this between two
        writes and during one. Tests that need this method are skipped without it.
        """
        raise NotImplementedError

    def refuse_new(self, folder: Path) -> AbstractAsyncContextManager[None]:
        """Make the server behind the sink refuse all records that it does not have, until the context ends.

        For example, the server is full or read-only. Without this method the suite refuses new records before the sink
        gets them.
        """
        raise NotImplementedError

    def make_rejected(self) -> Record | None:
        """A record that the sink must reject for good. Tests that need one are skipped if this returns None."""
        return None

    def _make(self, folder: Path) -> Sink:
        """A sink as delivery uses it: when a write returns, the batch is durable."""
        sink = self.make_sink(folder)
        return DeliveredSink(sink) if sink.stable_batches or sink.buffering else sink

    def _open(self, folder: Path) -> AbstractAsyncContextManager[Sink]:
        return opened(self._make(folder))

    def _records(self, count: int) -> list[Record]:
        return [placed(self.make_record(number, "")) for number in range(1, count + 1)]

    def _rejected(self) -> Record:
        record = self.make_rejected()
        assert record is not None
        return placed(record)

    async def _assert_comes_through(self, folder: Path, batch: Sequence[Record]) -> None:
        async with self._open(folder) as sink:
            await sink.write(batch)
        await self._assert_holds(folder, batch)

    async def _assert_holds(self, folder: Path, written: Sequence[Record], *, once: bool = False) -> None:
        """The target has the item of each record. First writes are in order; repetitions are allowed, unless `once`."""
        expected = [value for record in written if (value := self.expected(record)) is not None]
        held = await self.read_back(folder)
        _assert_same(held, expected, in_order=self.keeps_order)
        assert not once or len(held) == len(expected), f"{len(held) - len(expected)} of {len(held)} are there twice"


@asynccontextmanager
async def opened(sink: Sink) -> AsyncIterator[Sink]:
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()


def skip(reason: str) -> None:
    import pytest  # make_records can be used without pytest

    pytest.skip(f"{reason}: see ingestd.testing.sinks")


def in_new_loop(test: Callable[[_T, Path], Coroutine[Any, Any, None]]) -> Callable[[_T, Path], None]:
    """A test of a coroutine function that needs no plugin of pytest: each call runs a new event loop."""

    @wraps(test)
    def run(self: _T, tmp_path: Path) -> None:
        asyncio.run(test(self, tmp_path))

    return run


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def _assert_same(held: Sequence[Any], written: Sequence[Any], *, in_order: bool) -> None:
    """Each written value is held, and no other. First occurrences are in order; repetitions are allowed."""
    there, wanted = [*dict.fromkeys(map(_text, held))], [*dict.fromkeys(map(_text, written))]
    missing, strange = [*_without(wanted, there)], [*_without(there, wanted)]
    near = f"; there is {_short(strange[0])}, which was never written" if strange else ""
    assert not missing, f"{len(missing)} of {len(wanted)} are missing, the first is {_short(missing[0])}{near}"
    assert not strange, f"{len(strange)} were never written, the first is {_short(strange[0])}"
    assert not in_order or there == wanted, "they are not in the order in which they were written"


def _text(value: Any) -> str:
    return _encode(_plain(value))


def _plain(value: Any) -> Any:
    """The same value for equal ones: 1.0 becomes 1, and a tuple becomes a list."""
    if value is None or isinstance(value, str | int):  # most values are, and these checks are quick
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without(values: Sequence[str], others: Sequence[str]) -> list[str]:
    known = {*others}
    return [value for value in values if value not in known]


def _short(value: str) -> str:
    return value if len(value) <= 600 else f"{value[:600]}… ({len(value)} characters)"
