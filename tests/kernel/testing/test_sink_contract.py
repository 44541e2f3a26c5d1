"""The contract suite: a correct sink passes, and each kind of fault is found by the test that names it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options
from ingestd.api.record_batch import Batch
from ingestd.api.sink import Sink, Span
from ingestd.support.ids import time_uuid
from ingestd.testing.crashes import killed_after
from ingestd.testing.sinks import SinkContract, make_records

Value = dict[str, Any]


class PathOptions(Options):
    path: Path


class Lines(Sink):
    """A correct sink. A file named `broken` beside its file simulates a lost connection."""

    Options = PathOptions
    _fd: int | None = None

    async def open(self) -> None:
        if self._fd is None:
            self._fd = os.open(self.options.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            # A kill may end a write in the middle of a line. The records after the last complete line come again.
            os.ftruncate(self._fd, self.options.path.read_bytes().rfind(b"\n") + 1)

    async def write(self, batch: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        broken = self.options.path.with_name("broken")
        if broken.exists():
            broken.unlink()
            raise ConnectionError("broken")
        self.refuse(batch)
        await asyncio.sleep(0.001)
        self.keep(b"".join([record.body + b"\n" for record in batch]))
        await asyncio.sleep(0.001)

    def refuse(self, batch: Sequence[Record]) -> None:
        reasons = {index: "no" for index, record in enumerate(batch) if b'"never"' in record.body}
        if reasons:
            raise SinkReject(reasons)

    def keep(self, lines: bytes) -> None:
        assert self._fd is not None
        os.write(self._fd, lines)

    async def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def whole(line: bytes) -> Value:
    try:
        value: Value = json.loads(line)
    except ValueError as error:
        raise AssertionError(f"not a complete line: {line!r}") from error
    return value


class LinesContract(SinkContract):
    kind: type[Sink] = Lines

    def make_sink(self, folder: Path) -> Sink:
        return self.kind("lines", PathOptions(path=folder / "out"))

    async def read_back(self, folder: Path) -> list[Value]:
        lines = (folder / "out").read_bytes().split(b"\n")[:-1]
        return [*map(whole, lines)]

    async def interrupt(self, folder: Path) -> None:
        (folder / "broken").touch()

    def make_rejected(self) -> Record | None:
        return make_records(1, data={"never": True})[0]


class TestLines(LinesContract):
    pass


class TestLinesWithoutHooks(SinkContract):
    """The suite without its optional hooks."""

    make_sink = LinesContract.make_sink
    read_back = LinesContract.read_back
    kind = Lines


class Orders(Lines):
    """Keeps only orders, in another form."""

    async def write(self, batch: Sequence[Record]) -> None:
        orders = [record.decode() for record in batch if record.type == "event"]
        kept = [(order["id"], order["data"]["text"]) for order in orders if order["key"] == "Order Completed"]
        self.keep(b"".join([json.dumps(order).encode() + b"\n" for order in kept]))


class TestOrders(LinesContract):
    """The suite for a sink that keeps some records only, in another form."""

    kind = Orders
    keeps_order = False
    make_rejected = SinkContract.make_rejected
    interrupt = SinkContract.interrupt

    def make_record(self, number: int, text: str) -> Record:
        return make_records(1, key="Order Completed", data={"text": text})[0]

    def expected(self, record: Record) -> tuple[str, str] | None:
        value = record.decode()
        return (value["id"], value["data"]["text"]) if value.get("key") == "Order Completed" else None

    async def read_back(self, folder: Path) -> list[Any]:
        return [*reversed(await super().read_back(folder))]


class Buffering(Lines):
    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self._kept = b""

    def keep(self, lines: bytes) -> None:
        self._kept += lines

    async def close(self) -> None:
        if self._fd is not None:
            super().keep(self._kept)
        await super().close()


class Tearing(Lines):
    """Continues after half a line left by a crash."""

    async def open(self) -> None:
        if self._fd is None:
            self._fd = os.open(self.options.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def write(self, batch: Sequence[Record]) -> None:
        await asyncio.sleep(0.0005)  # so that the beginning of a write does not show the fault
        self.keep(b"\n".join([record.body for record in batch]))
        await asyncio.sleep(0.005)
        self.keep(b"\n")


class Forgetful(Lines):
    """Remembers a batch as written before writing it."""

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self._known: set[bytes] = set()

    async def write(self, batch: Sequence[Record]) -> None:
        new = [record for record in batch if record.body not in self._known]
        self._known |= {record.body for record in batch}
        await super().write(new)


class Swapping(Lines):
    async def write(self, batch: Sequence[Record]) -> None:
        await super().write(batch[::-1])


class Shortening(Lines):
    async def write(self, batch: Sequence[Record]) -> None:
        await super().write([record for record in batch if len(record.body) < 100_000])


class Ascii(Lines):
    def keep(self, lines: bytes) -> None:
        super().keep(lines.decode().encode("ascii", "replace"))


class Picky(Lines):
    async def write(self, batch: Sequence[Record]) -> None:
        assert all(record.decode()["anonymousId"] for record in batch)
        await super().write(batch)


class Small(Lines):
    async def write(self, batch: Sequence[Record]) -> None:
        assert len(batch) <= 1000
        await super().write(batch)


class SeesBatches(Lines):
    """Recognises a repeated batch by its first record."""

    _first = b""

    async def write(self, batch: Sequence[Record]) -> None:
        if batch[0].body != self._first:
            await super().write(batch)
            self._first = batch[0].body


class Once(Lines):
    _opened = False

    async def open(self) -> None:
        assert not self._opened
        self._opened = True
        await super().open()


class Halfway(Lines):
    """Cannot be opened after an interrupted opening."""

    _opening = False

    async def open(self) -> None:
        assert not self._opening
        self._opening = True
        await asyncio.sleep(0)
        self._opening = False
        await super().open()


class LeavesFiles(Lines):
    async def close(self) -> None:
        self._fd = None


class LeavesTasks(Lines):
    async def open(self) -> None:
        await super().open()
        # The loop keeps a task that waits for a timer. Another task could be collected, and asyncio would log that.
        self._task = asyncio.create_task(asyncio.sleep(3600))


class ClosesOnlyWhatIsOpen(Lines):
    async def close(self) -> None:
        assert self._fd is not None
        await super().close()


class GivesUp(Lines):
    """Rejects records that it cannot write at the moment."""

    async def write(self, batch: Sequence[Record]) -> None:
        try:
            await super().write(batch)
        except ConnectionError:
            raise SinkReject(dict.fromkeys(range(len(batch)), "no connection")) from None


class RejectsAll(Lines):
    def refuse(self, batch: Sequence[Record]) -> None:
        try:
            super().refuse(batch)
        except SinkReject:
            raise SinkReject(dict.fromkeys(range(len(batch)), "no")) from None


class KeepsRejected(Lines):
    def refuse(self, batch: Sequence[Record]) -> None:
        self.keep(b"".join([record.body + b"\n" for record in batch]))
        super().refuse(batch)


class RejectsWithoutReason(Lines):
    def refuse(self, batch: Sequence[Record]) -> None:
        try:
            super().refuse(batch)
        except SinkReject as error:
            raise SinkReject(dict.fromkeys(error.reasons, "")) from None


class NeverChecks(Lines):
    async def check(self) -> None:
        assert self._fd is not None


REJECTS = "test_of_many_records_exactly_those_it_cannot_take_are_rejected"
FOUND_BY = {
    Buffering: "test_a_crash_before_the_place_is_stored_loses_nothing",
    Tearing: "test_a_crash_amid_a_write_loses_nothing",
    Forgetful: "test_a_write_that_is_cancelled_and_made_again_loses_nothing",
    Swapping: "test_a_batch_of_one_and_a_batch_of_many_come_in_order",
    Shortening: "test_a_record_of_a_megabyte_comes_through",
    Ascii: "test_any_text_comes_through",
    Picky: "test_records_of_every_type_come_through",
    Small: "test_a_large_batch_comes_through",
    SeesBatches: "test_a_batch_may_come_again",
    Once: "test_it_can_be_opened_again",
    Halfway: "test_opening_that_was_cancelled_can_be_tried_again",
    LeavesFiles: "test_it_lets_go_of_everything_when_it_is_closed",
    LeavesTasks: "test_it_lets_go_of_everything_when_it_is_closed",
    ClosesOnlyWhatIsOpen: "test_it_closes_also_when_it_never_wrote_or_opened",
    GivesUp: "test_what_is_written_while_the_connection_breaks_arrives_later",
    RejectsAll: REJECTS,
    KeepsRejected: REJECTS,
    RejectsWithoutReason: REJECTS,
    NeverChecks: "test_check_passes_where_it_opens",
}


@pytest.mark.parametrize(("kind", "test"), FOUND_BY.items(), ids=lambda each: getattr(each, "__name__", "by"))
def test_a_sink_that_breaks_the_contract_is_found_out(kind: type[Lines], test: str, tmp_path: Path) -> None:
    contract = LinesContract()
    contract.kind = kind
    with pytest.raises((AssertionError, KeyError, SinkReject)):
        getattr(contract, test)(tmp_path)


class TellsLate(Lines):
    """The thread of an opening that was cancelled tells its end later, like that of a connection of aiosqlite."""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            threading.Timer(0.3, loop.call_soon_threadsafe, [int]).start()
            raise
        await super().open()


def test_the_loop_goes_on_until_the_threads_of_cancelled_openings_have_ended(tmp_path: Path) -> None:
    contract = LinesContract()
    contract.kind = TellsLate
    threads = {*threading.enumerate()}
    contract.test_opening_that_was_cancelled_can_be_tried_again(tmp_path)
    assert {*threading.enumerate()} <= threads


class GivesUpWhenFull(Lines):
    """Rejects records if there is no room. A file named `full` beside its file simulates a full disk."""

    def refuse(self, batch: Sequence[Record]) -> None:
        if self.options.path.with_name("full").exists():
            raise SinkReject(dict.fromkeys(range(len(batch)), "no room"))


class Full(LinesContract):
    @asynccontextmanager
    async def refuse_new(self, folder: Path) -> AsyncIterator[None]:
        full = folder / "full"
        full.touch()
        yield
        full.unlink()


@pytest.mark.logs("sink:lines: .* dead letter")
def test_a_sink_that_rejects_records_for_want_of_room_is_found_out(tmp_path: Path) -> None:
    contract = Full()
    contract.kind = GivesUpWhenFull
    with pytest.raises(AssertionError, match="became dead letters"):
        contract.test_nothing_is_given_up_while_only_what_is_new_is_refused(tmp_path)


def test_the_message_about_missing_records_shows_the_expected_and_the_found_ones(tmp_path: Path) -> None:
    contract = LinesContract()
    contract.kind = Ascii
    with pytest.raises(AssertionError) as raised:
        contract.test_any_text_comes_through(tmp_path)
    told = str(raised.value)
    assert "5 of 10 are missing, the first" in told
    assert "zażółć" in told
    assert "za????" in told


def test_a_failure_in_the_separate_process_is_reported(tmp_path: Path) -> None:
    contract = LinesContract()
    contract.kind = Once
    (tmp_path / "broken").touch()
    with pytest.raises(AssertionError, match=r"(?s)failed in the separate process.*ConnectionError: broken"):
        contract.test_a_crash_before_the_place_is_stored_loses_nothing(tmp_path)


def test_the_separate_process_is_killed_after_enough_reports() -> None:
    async def endless(report: Any) -> None:
        while True:
            report()
            await asyncio.sleep(0.001)

    assert 3 <= killed_after(3, endless) < 1000


def test_made_records_have_unique_ids() -> None:
    records = make_records(3, tenant="other", colour="red")
    values = [record.decode() for record in records]
    assert len({value["id"] for value in values}) == 3
    assert {(value["tenant"], value["colour"]) for value in values} == {("other", "red")}
    assert [record.position for record in records] == [1, 2, 3]


class Files(Lines):
    """A correct buffering sink: each flush writes a file with the name of the span."""

    buffering = True
    _buffer: Sequence[Record] = ()

    async def open(self) -> None:
        self.options.path.mkdir(exist_ok=True)
        self._buffer = []

    async def write(self, batch: Sequence[Record]) -> None:
        self._buffer = [*self._buffer, *batch]

    async def flush(self, span: Span | None) -> None:
        known = self.known() if span is None else set()
        lines = [record.body + b"\n" for record in self._buffer if record.body not in known]
        if lines:
            await asyncio.sleep(0.001)
            path = self.options.path / self.name_of(span)
            path.with_suffix(".part").write_bytes(b"".join(lines))
            await asyncio.sleep(0.001)
            path.with_suffix(".part").rename(path)
        self._buffer = []

    def name_of(self, span: Span | None) -> str:
        return f"{span.first}-{span.last}.jsonl" if span is not None else f"again-{self._buffer[0].position}.jsonl"

    def known(self) -> set[bytes]:
        return {line for path in self.options.path.glob("*.jsonl") for line in path.read_bytes().splitlines()}

    async def close(self) -> None:
        self._buffer = []


class FilesContract(SinkContract):
    kind: type[Sink] = Files
    keeps_order = False
    exactly_once = True

    def make_sink(self, folder: Path) -> Sink:
        return self.kind("files", PathOptions(path=folder / "out"))

    async def read_back(self, folder: Path) -> list[Value]:
        return [whole(line) for path in (folder / "out").glob("*.jsonl") for line in path.read_bytes().splitlines()]


class TestFiles(FilesContract):
    """The suite for a correct buffering sink."""


class RandomNames(Files):
    def name_of(self, span: Span | None) -> str:
        return f"{time_uuid()}.jsonl"


class KeepsBuffer(Files):
    async def open(self) -> None:
        self.options.path.mkdir(exist_ok=True)

    async def close(self) -> None:
        pass


class ForgetsEarlierWrites(Files):
    async def write(self, batch: Sequence[Record]) -> None:
        self._buffer = [*batch]


class NeedsSpan(Files):
    def known(self) -> set[bytes]:
        return set()

    def name_of(self, span: Span | None) -> str:
        return f"{time_uuid()}.jsonl" if span is None else super().name_of(span)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (RandomNames, "test_a_batch_that_comes_again_after_a_crash_is_stored_once"),
        (KeepsBuffer, "test_a_buffer_is_empty_after_a_close_and_an_opening"),
        (ForgetsEarlierWrites, "test_one_flush_makes_several_writes_durable"),
        (NeedsSpan, "test_records_may_be_flushed_without_a_span"),
    ],
)
def test_a_buffering_sink_that_breaks_the_contract_is_found_out(kind: type[Files], test: str, tmp_path: Path) -> None:
    contract = FilesContract()
    contract.kind = kind
    with pytest.raises(AssertionError):
        getattr(contract, test)(tmp_path)


class Tokens(Lines):
    """A correct sink with stable batches: a line has a token, and a token that is there is not written again."""

    stable_batches = True

    async def write(self, batch: Sequence[Record]) -> None:
        assert isinstance(batch, Batch)
        token = batch.token.encode()
        if token not in self.options.path.read_bytes():
            await asyncio.sleep(0.001)
            bodies = b",".join([record.body for record in batch])
            self.keep(b'{"token":"%s","records":[%s]}\n' % (token, bodies))
        await asyncio.sleep(0.001)


class TestTokens(LinesContract):
    """The suite for a correct sink that stores a batch with the same token once."""

    kind = Tokens
    exactly_once = True
    make_rejected = SinkContract.make_rejected
    interrupt = SinkContract.interrupt

    async def read_back(self, folder: Path) -> list[Value]:
        return [record for line in await super().read_back(folder) for record in line["records"]]
