"""What a test module says of its sink, and what the tests of the suite do with all that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from ingestd.api.events import Record
from ingestd.api.sink import Sink

from .comparison import assert_same
from .records import make_records, placed

__all__ = ["SinkTraits"]


class SinkTraits(ABC):
    """An author's class overrides what is public; the rest is for the tests alone."""

    keeps_order: ClassVar[bool] = True
    """False where `read_back` cannot tell in which order records were written."""

    @abstractmethod
    def make_sink(self, folder: Path) -> Sink:
        """A sink, not yet open. All sinks of one folder (a fresh one for each test) lead to one place."""

    @abstractmethod
    async def read_back(self, folder: Path) -> Sequence[Any]:
        """What that place holds, in the order it was written: for each record what `expected` says.

        What is there twice is given twice, if only because the record came again.
        """

    def expected(self, record: Record) -> Any:
        """What comes of a record, as `read_back` gives it: the decoded JSON object; None for nothing at all."""
        return record.decode()

    def make_record(self, number: int, text: str) -> Record:
        """A record that the sink keeps, with an id of its own and any `text`, of up to a megabyte, somewhere in it."""
        names = {text: text} if len(text) < 100 else {}  # members may not have names of any length
        return make_records(1, data={"number": number, "text": text, **names})[0]

    async def interrupt(self, folder: Path) -> None:
        """Break what an open sink goes by: its connection, the server behind it.

        Writes may fail for some seconds after it, until all is well again. It is called between two
        writes and amid one. Tests that need it are skipped without.
        """
        raise NotImplementedError

    def refuse_new(self, folder: Path) -> AbstractAsyncContextManager[None]:
        """Have what is behind the sink refuse all records that it does not have, until the context ends.

        It is full, say, or read-only. Without this method the suite refuses new records itself, before the sink
        gets them.
        """
        raise NotImplementedError

    def make_rejected(self) -> Record | None:
        """A record that the sink must reject for good. Tests that need one are skipped without."""
        return None

    @asynccontextmanager
    async def _open(self, folder: Path) -> AsyncIterator[Sink]:
        sink = self.make_sink(folder)
        try:
            await sink.open()
            yield sink
        finally:
            await sink.close()

    def _records(self, count: int) -> list[Record]:
        return [placed(self.make_record(number, "")) for number in range(1, count + 1)]

    def _rejected(self) -> Record:
        record = self.make_rejected()
        assert record is not None
        return placed(record)

    async def _assert_holds(self, folder: Path, written: Sequence[Record]) -> None:
        """What is expected of each record is there, and for the first time in its order; it may be there again."""
        expected = [value for record in written if (value := self.expected(record)) is not None]
        assert_same(await self.read_back(folder), expected, in_order=self.keeps_order)
