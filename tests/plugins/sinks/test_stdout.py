"""The stdout sink: complete lines in order for every reader. A reader that stops delays nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.events import Record
from ingestd.config import parse_config
from ingestd.delivery import make_sink_consumer
from ingestd.plugins.sinks.stdout import StdoutSink
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.examples import examples
from tests.support.forked import INGESTD
from tests.support.journals import until
from tests.support.sinks import values
from tests.support.terminal import HOSTILE, terminal

FULL = 1 << 16  # bytes in a pipe of Linux


def make(descriptor: int) -> StdoutSink:
    return StdoutSink("out", StdoutSink.Options(), descriptor=descriptor)


def decoded(content: bytes) -> list[Any]:
    """The decoded lines. All must be complete."""
    assert not content or content.endswith(b"\n")
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def long_records(count: int, size: int = FULL) -> list[Record]:
    return [record for _ in range(count) for record in make_records(1, data={"text": "x" * size})]


class Pipe:
    """Both ends of a pipe, or of a pair of sockets."""

    def __init__(self, *, sockets: bool = False) -> None:
        if sockets:
            self.reader, self.writer = (end.detach() for end in socket.socketpair())
        else:
            self.reader, self.writer = os.pipe()
        self.content = b""

    def read(self, size: int = FULL) -> bytes:
        """Read the available bytes, at most `size`. Returns all bytes read so far."""
        os.set_blocking(self.reader, False)
        with suppress(BlockingIOError):
            self.content += os.read(self.reader, size)
        return self.content

    @property
    def is_full(self) -> bool:
        """Whether a write would block."""
        ready = select.poll()
        ready.register(self.writer, select.POLLOUT)
        return not ready.poll(0)

    @property
    def waiting(self) -> int:
        """The number of unread bytes."""
        return int.from_bytes(fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)), sys.byteorder)

    def read_all(self) -> bytes:
        while self.waiting:
            self.read()
        return self.content

    def close(self) -> None:
        for end in (self.reader, self.writer):
            with suppress(OSError):
                os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


async def read_while(pipe: Pipe, work: asyncio.Task[None]) -> None:
    """Read from the pipe until the work has ended."""
    while not work.done():
        pipe.read()
        await asyncio.sleep(0)
    await work
    pipe.read_all()


async def stopped(work: asyncio.Task[None]) -> None:
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


class TestContractWithAFile(SinkContract):
    @pytest.fixture(autouse=True)
    def descriptor(self, tmp_path: Path) -> Iterator[None]:
        self.fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        yield
        os.close(self.fd)

    def make_sink(self, folder: Path) -> StdoutSink:
        return make(self.fd)

    async def read_back(self, folder: Path) -> list[Any]:
        content = (folder / "out").read_bytes()
        # A line torn by a crash is still in the file, and is not JSON.
        return decoded(b"".join(line for line in content.splitlines(keepends=True) if line.endswith(b"}\n")))


class TestContractWithAPipe(SinkContract):
    sockets = False

    @pytest.fixture(autouse=True)
    def reader(self) -> Iterator[None]:
        self.pipe = Pipe(sockets=self.sockets)
        reading, ended = threading.Lock(), threading.Event()
        self.reading = reading

        def read() -> None:
            while not ended.is_set():
                with reading:
                    self.pipe.read()
                time.sleep(0.0001)

        thread = threading.Thread(target=read)
        thread.start()
        yield
        ended.set()
        thread.join()
        self.pipe.close()

    def make_sink(self, folder: Path) -> StdoutSink:
        return make(self.pipe.writer)

    async def read_back(self, folder: Path) -> list[Any]:
        with self.reading:
            return decoded(self.pipe.read_all())


class TestContractWithASocket(TestContractWithAPipe):
    """systemd passes a socket as standard output."""

    sockets = True


async def test_a_line_is_the_record_byte_for_byte_in_one_line(pipe: Pipe) -> None:
    batch = [
        *make_records(2, data={"name": "Łódź"}),
        Record("order_total", 0, b'{\n  "id": "x",\n  "text": "a\\nb"\n}'),
    ]
    await make(pipe.writer).write(batch)
    *lines, last = pipe.read_all().splitlines()
    assert lines == [record.body for record in batch[:2]]
    assert json.loads(last) == {"id": "x", "text": "a\nb"}


async def test_no_record_can_control_a_terminal() -> None:
    batch = make_records(2, data={"texts": HOSTILE})
    with terminal() as (reading, writing):
        await make(writing).write(batch)
        shown = os.read(reading, FULL).decode().removesuffix("\r\n").split("\r\n")
    assert all(line.isprintable() for line in shown)
    assert [json.loads(line) for line in shown] == values(batch)


async def test_a_full_pipe_delays_only_the_write(pipe: Pipe) -> None:
    sink, batch = make(pipe.writer), long_records(3)
    writing = asyncio.create_task(sink.write(batch))
    await until(lambda: pipe.is_full)
    longest = 0.0
    for _ in range(50):
        began = time.monotonic()
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - began)
    assert longest < 0.1
    assert not writing.done()
    await sink.check()
    await read_while(pipe, writing)
    assert decoded(pipe.content) == values(batch)


async def test_after_a_timeout_the_same_batch_is_continued(pipe: Pipe) -> None:
    """So a reader too slow for a complete batch still gets it, and gets it once."""
    sink, batch = make(pipe.writer), long_records(6)
    for count in range(1, 4):
        writing = asyncio.create_task(sink.write(batch))
        await until(lambda: pipe.is_full)
        await stopped(writing)
        assert len(pipe.read(FULL * 9 // 10)) > FULL // 2 * count
    await read_while(pipe, asyncio.create_task(sink.write(batch)))
    assert decoded(pipe.content) == values(batch)


async def test_an_unfinished_line_is_completed_before_another_batch(pipe: Pipe) -> None:
    sink, first, second = make(pipe.writer), long_records(3), make_records(3)
    for batch in (first, second, first):  # nothing of the second batch fits into the pipe
        writing = asyncio.create_task(sink.write(batch))
        await until(lambda: pipe.is_full)
        await asyncio.sleep(0.01)
        await stopped(writing)
    await read_while(pipe, asyncio.create_task(sink.write(second)))
    assert decoded(pipe.content) == values([first[0], *second])


async def test_a_repeated_complete_batch_is_written_again(pipe: Pipe) -> None:
    sink, batch = make(pipe.writer), make_records(3)
    await sink.write(batch)
    await sink.write(batch)
    assert decoded(pipe.read_all()) == values([*batch, *batch])


@given(
    sizes=st.lists(st.integers(0, 9000) | st.integers(60_000, 80_000), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 30),
)
@examples(25)
def test_lines_are_complete_and_in_order_despite_any_interruptions(sizes: list[int], seed: int) -> None:
    chance = random.Random(seed)

    async def scenario(pipe: Pipe) -> None:
        sink = make(pipe.writer)
        written: list[Record] = []
        for size in sizes:
            batch = long_records(chance.randint(1, 3), size)
            for _ in range(chance.randint(0, 3)):
                writing = asyncio.create_task(sink.write(batch))
                for _ in range(chance.randint(0, 20)):
                    await asyncio.sleep(0)
                pipe.read(chance.randint(1, FULL))
                await stopped(writing)
                if chance.random() < 0.2:
                    await read_while(pipe, asyncio.create_task(sink.close()))
            await read_while(pipe, asyncio.create_task(sink.write(batch)))
            written += batch
        await sink.close()
        held = {value["id"]: value for value in decoded(pipe.read_all())}
        assert [*held.values()] == values(written)

    pipe = Pipe()
    try:
        asyncio.run(scenario(pipe))
    finally:
        pipe.close()


async def test_closing_completes_an_unfinished_line(pipe: Pipe) -> None:
    sink, batch = make(pipe.writer), long_records(3, 2 * FULL)
    writing = asyncio.create_task(sink.write(batch))
    await until(lambda: pipe.is_full)
    await stopped(writing)
    await read_while(pipe, asyncio.create_task(sink.close()))
    assert decoded(pipe.content) == values(batch[:1])
    await sink.open()
    await read_while(pipe, asyncio.create_task(sink.write(batch)))
    assert decoded(pipe.content) == values([batch[0], *batch])


async def test_closing_does_not_wait_for_a_reader_that_has_stopped(pipe: Pipe) -> None:
    sink, batch = make(pipe.writer), long_records(2)
    writing = asyncio.create_task(sink.write(batch))
    await until(lambda: pipe.is_full)
    await stopped(writing)
    began = time.monotonic()
    await sink.close()
    assert time.monotonic() - began < 3
    await sink.open()  # the sink can continue nevertheless
    await read_while(pipe, asyncio.create_task(sink.write(batch)))
    assert decoded(pipe.content) == values([batch[0], *batch])


async def test_a_closed_pipe_is_a_failure_and_a_new_reader_gets_the_whole_batch(tmp_path: Path) -> None:
    """A named pipe, which a second reader can open. It still has the bytes that the first reader left."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pipe = Pipe()
    pipe.close()
    pipe.reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    pipe.writer = os.open(fifo, os.O_WRONLY)
    sink, batch = make(pipe.writer), long_records(2)
    try:
        writing = asyncio.create_task(sink.write(batch))
        await until(lambda: pipe.is_full)
        pipe.read(1000)
        os.close(pipe.reader)
        for attempt in (writing, sink.write(batch), sink.open(), sink.check()):
            with pytest.raises(SinkRetry, match="nobody reads the standard output: its pipe is closed"):
                await attempt
        pipe.reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        await sink.check()
        await read_while(pipe, asyncio.create_task(sink.write(batch)))
        assert decoded(pipe.content) == values([batch[0], *batch])
    finally:
        pipe.close()


async def test_the_shared_descriptor_keeps_its_blocking_mode(pipe: Pipe) -> None:
    batch = long_records(3)
    for blocking in (True, False):
        os.set_blocking(pipe.writer, blocking)
        await read_while(pipe, asyncio.create_task(make(pipe.writer).write(batch)))
        assert os.get_blocking(pipe.writer) is blocking
    assert decoded(pipe.content) == values([*batch, *batch])


async def test_short_lines_are_not_torn_by_other_writers(pipe: Pipe) -> None:
    """For example the log, if standard error is the same pipe."""
    ended = threading.Event()

    def shout() -> None:
        while not ended.is_set():
            os.write(pipe.writer, b'{"id": "other"}\n')

    other = threading.Thread(target=shout)
    batch = make_records(500)
    writing = asyncio.create_task(make(pipe.writer).write(batch))
    other.start()
    try:
        await read_while(pipe, writing)
    finally:
        ended.set()
        while other.is_alive():
            pipe.read()
        other.join()
    assert [value for value in decoded(pipe.read_all()) if value["id"] != "other"] == values(batch)


@pytest.mark.parametrize("before", [b"", b"{}\n", b'{}\n{"id": "to'])
async def test_a_line_torn_by_a_crash_gets_a_line_end(tmp_path: Path, before: bytes) -> None:
    path, batch = tmp_path / "out", make_records(2)
    path.write_bytes(before)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    for _ in range(2):
        sink = make(descriptor)
        await sink.open()
        await sink.open()
        await sink.write(batch[:1])
        await sink.close()
    os.close(descriptor)
    ended = before if before.endswith(b"\n") or not before else before + b"\n"
    assert path.read_bytes() == ended + (batch[0].body + b"\n") * 2


async def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = make(full)
    with pytest.raises(SinkRetry, match="No space left on device"):
        await sink.write(make_records(1))
    await sink.close()
    os.close(full)


async def test_an_unwritable_descriptor_is_reported(pipe: Pipe) -> None:
    closed = os.dup(pipe.writer)
    os.close(closed)
    for descriptor, reason in ((pipe.reader, "cannot be written to"), (closed, "Bad file descriptor")):
        sink = make(descriptor)
        for attempt in (sink.check(), sink.open()):
            with pytest.raises(OSError, match=reason):
                await attempt
        await sink.close()


def test_only_one_sink_of_a_configuration_may_use_standard_output(tmp_path: Path) -> None:
    config = parse_config({"sinks": {}}, source="x.toml", base=tmp_path)
    first = make_sink_consumer("one", {"type": "stdout"}, StdoutSink, config, transforms={})
    with pytest.raises(ConfigError, match=r"x\.toml: sinks\.two\.type: sinks\.one already uses the standard output"):
        make_sink_consumer("two", {"type": "stdout"}, StdoutSink, config, transforms={})
    del first
    make_sink_consumer("two", {"type": "stdout"}, StdoutSink, config, transforms={})


# The installed daemon


EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {"text": "x" * 1000}}
SINK = {"sinks.out": 'type = "stdout"'}


def serve_into(shop: Shop, redirection: str) -> Daemon:
    """A daemon whose standard output a shell redirects."""
    return Daemon(shop.config, prefix=("bash", "-c", f'cd "$0" && exec "$@" {redirection}', str(shop.folder)))


def send(shop: Shop, daemon: Daemon, count: int) -> None:
    for _ in range(count):
        assert daemon.post("/track", EVENT, shop.public.id).status == 200


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Pipe]:
    """A named pipe for `> fifo`, and its open reading end."""
    os.mkfifo(tmp_path / "fifo")
    pipe = Pipe()
    pipe.close()
    pipe.reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    yield pipe
    with suppress(OSError):
        os.close(pipe.reader)


def test_standard_output_has_only_records_and_the_log_is_on_standard_error(tmp_path: Path, fifo: Pipe) -> None:
    shop = Shop(tmp_path, SINK)
    with serve_into(shop, "> fifo") as daemon:
        send(shop, daemon, 5)
        wait_until(lambda: fifo.read().count(b"\n") == 5)
        send(shop, daemon, 5)
        assert daemon.terminate() == 0
    assert decoded(fifo.read_all()) == shop.exported() == shop.archived()
    assert daemon.log[-1].endswith("stopped")


def test_a_reader_that_stops_delays_neither_answers_nor_other_sinks_nor_the_shutdown(
    tmp_path: Path, fifo: Pipe
) -> None:
    shop = Shop(tmp_path, {**SINK, "http": 'shutdown_timeout = "500ms"'})
    with serve_into(shop, "> fifo") as daemon:
        send(shop, daemon, 100)
        wait_until(lambda: len(shop.archived()) == 100)
        wait_until(lambda: fifo.waiting > FULL // 2)
        assert daemon.metric('ingestd_sink_pending{sink="out"}') > 0
        assert daemon.ops("/readyz").status == 200
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 5
        assert not any("ERROR" in line for line in daemon.log), daemon.log
    before = fifo.read_all()
    assert 0 < len(decoded(before)) < 100
    # The next daemon writes the rest, and repeats records without a stored cursor.
    with serve_into(shop, "> fifo") as daemon:
        wait_until(lambda: fifo.read().count(b"\n") >= 100 and daemon.metric('ingestd_sink_pending{sink="out"}') == 0)
        assert daemon.terminate() == 0
    held = {value["id"]: value for value in decoded(fifo.read_all())}
    assert [*held.values()] == shop.exported()


def test_a_slow_reader_gets_each_record_once_despite_timeouts(tmp_path: Path, fifo: Pipe) -> None:
    shop = Shop(tmp_path, {"sinks.out": 'type = "stdout"\ntimeout = "50ms"'})
    with serve_into(shop, "> fifo") as daemon:
        send(shop, daemon, 90)
        wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="out"}') >= 1)
        wait_until(lambda: fifo.read(2000).count(b"\n") == 90)
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="out"}') == 0)
        assert daemon.terminate() == 0
    assert decoded(fifo.read_all()) == shop.exported()
    assert any("sink:out: a write took longer than 0.05 s" in line for line in daemon.log)


def test_a_closed_reader_is_logged_and_the_daemon_continues(tmp_path: Path, fifo: Pipe) -> None:
    shop = Shop(tmp_path, SINK)
    with serve_into(shop, "> fifo") as daemon:
        send(shop, daemon, 1)
        wait_until(lambda: fifo.read().count(b"\n") == 1)
        os.close(fifo.reader)
        send(shop, daemon, 3)
        wait_until(
            lambda: daemon.read_log() or any("its pipe is closed; it is tried again" in each for each in daemon.log)
        )
        wait_until(lambda: len(shop.archived()) == 4)
        fifo.reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        wait_until(lambda: fifo.read().count(b"\n") == 4)
        assert daemon.terminate() == 0
    assert decoded(fifo.read_all()) == shop.exported()


def test_head_gets_its_lines_and_the_daemon_runs_until_it_is_stopped(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"sinks.out": 'type = "stdout"\nstart = "beginning"', "http": 'shutdown_timeout = "200ms"'})
    with serve_into(shop, "> before") as daemon:
        send(shop, daemon, 100)  # more records than fit into the pipe
        assert daemon.terminate() == 0
    shop.config.write_text(shop.config.read_text().replace("[sinks.out]", "[sinks.again]"))
    line = '{ echo $BASHPID > pid; exec "$0" serve --config ingestd.toml; } | head -n 3; echo "${PIPESTATUS[@]}"'
    with (tmp_path / "log").open("w") as log:
        shell = subprocess.Popen(["bash", "-c", line, INGESTD], cwd=tmp_path, stdout=subprocess.PIPE, stderr=log)
    try:
        wait_until(lambda: "sink:again: nobody reads the standard output" in (tmp_path / "log").read_text())
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        printed, _ = shell.communicate(timeout=20)
    *lines, codes = printed.splitlines(keepends=True)
    assert codes == b"0 0\n"
    assert decoded(b"".join(lines)) == shop.exported()[:3]
    said = (tmp_path / "log").read_text().splitlines()
    assert said[-1].endswith("stopped")
    assert not any("ERROR" in each or "Traceback" in each for each in said), said


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_second_sink_stops_the_start(tmp_path: Path, command: str) -> None:
    shop = Shop(tmp_path, {**SINK, "sinks.more": 'type = "stdout"'})
    done = run_ingestd(command, config=shop.config)
    assert done.returncode == 78
    assert "sinks.more.type: sinks.out already uses the standard output" in done.stderr


def test_a_closed_standard_output_stops_the_start(tmp_path: Path) -> None:
    """Otherwise the next opened file would get its number, and the records would go into that file."""
    shop = Shop(tmp_path, SINK)
    done = subprocess.run(
        ["bash", "-c", '"$0" serve --config "$1" >&-', INGESTD, str(shop.config)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert "sinks.out.type: the standard output is closed" in done.stderr
