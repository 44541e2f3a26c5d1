"""The jsonl sink: complete lines despite failures of the disk, the file and the process."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import re
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Duration, Size, read_options
from ingestd.api.times import format_time, now, parse_time
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.plugins.sinks.line_file import LineFile
from ingestd.plugins.sinks.rotated_files import RotatedFiles
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.disks import held_in_memory, small_disk
from tests.support.journals import until
from tests.support.sinks import values

ROTATED = re.compile(r"events-\d{8}T\d{6}Z-(\d{4,})\.jsonl(?:\.gz)?")
OLD = "events-20260101T000000Z-{:04d}.jsonl"


def make(path: Path, *, max_size: int = 100 << 20, **options: Any) -> JsonlSink:
    return JsonlSink("archive", JsonlSink.Options(path=path, max_size=Size(max_size), **options))


@asynccontextmanager
async def opened(path: Path, *, max_size: int = 100 << 20, **options: Any) -> AsyncIterator[JsonlSink]:
    sink = make(path, max_size=max_size, **options)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


def rotated(folder: Path) -> list[Path]:
    """The rotated files, oldest first. There must be no other files except events.jsonl and ballast."""
    found = {}
    for path in folder.iterdir():
        if path.name not in {"events.jsonl", "ballast"}:
            match = ROTATED.fullmatch(path.name)
            assert match is not None, path
            found[int(match[1])] = path
    return [found[number] for number in sorted(found)]


def suffixes_of(folder: Path) -> list[str]:
    """The suffixes of the rotated files. Other files are ignored."""
    return [path.suffix for path in folder.iterdir() if ROTATED.fullmatch(path.name)]


def content_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def lines(*paths: Path) -> list[Any]:
    """The decoded lines of the files. All lines must be complete."""
    content = b"".join(map(content_of, paths))
    assert not content or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


class TestContract(SinkContract):
    def make_sink(self, folder: Path) -> JsonlSink:
        return make(folder / "events.jsonl")

    async def read_back(self, folder: Path) -> list[Any]:
        return lines(folder / "events.jsonl")


class TestContractWithRotation(SinkContract):
    def make_sink(self, folder: Path) -> JsonlSink:
        return make(folder / "events.jsonl", max_size=2000)

    async def read_back(self, folder: Path) -> list[Any]:
        return lines(*rotated(folder), folder / "events.jsonl")


def archive(folder: Path) -> list[Any]:
    """The decoded lines of all rotated files and the current file, at any moment and after any crash."""
    contents: dict[int, bytes] = {}
    for name in sorted(path.name for path in folder.iterdir() if not path.name.endswith(".part")):
        if name != "events.jsonl":
            match = ROTATED.fullmatch(name)
            assert match is not None, name
            plain, compressed = folder / name.removesuffix(".gz"), folder / f"{name.removesuffix('.gz')}.gz"
            try:
                content = plain.read_bytes()
            except FileNotFoundError:  # compressed meanwhile
                content = content_of(compressed)
            assert contents.setdefault(int(match[1]), content) == content
    content = b"".join([*(contents[number] for number in sorted(contents)), (folder / "events.jsonl").read_bytes()])
    return [json.loads(line) for line in content.splitlines()]


class TestContractWithCompression(SinkContract):
    def make_sink(self, folder: Path) -> JsonlSink:
        return make(folder / "events.jsonl", max_size=2000, gzip=True)

    async def read_back(self, folder: Path) -> list[Any]:
        return archive(folder)


async def test_a_line_is_the_record_byte_for_byte(tmp_path: Path) -> None:
    batch = make_records(3, data={"name": "Łódź"})
    async with opened(tmp_path / "events.jsonl") as sink:
        await sink.write(batch)
    assert (tmp_path / "events.jsonl").read_bytes() == b"".join(record.body + b"\n" for record in batch)


async def test_a_record_with_line_breaks_between_its_tokens_is_still_one_line(tmp_path: Path) -> None:
    async with opened(tmp_path / "events.jsonl") as sink:
        await sink.write([Record("order_total", 0, b'{\n  "id": "x",\n  "text": "a\\nb"\n}')])
    assert lines(tmp_path / "events.jsonl") == [{"id": "x", "text": "a\nb"}]


async def test_missing_folders_are_made_and_others_may_not_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "var" / "log" / "events.jsonl"
    async with opened(path) as sink:
        await sink.write(make_records(1))
    assert len(lines(path)) == 1
    assert stat.S_IMODE(path.stat().st_mode) & 0o027 == 0


@pytest.mark.parametrize("torn", [b"{", b'{"id":"a"}', b"x" * 200_000])
async def test_a_torn_last_line_is_cut_off_at_open(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    before, after = make_records(2), make_records(2)
    async with opened(path) as sink:
        await sink.write(before)
    with path.open("ab") as file:
        file.write(torn)
    async with opened(path) as sink:
        assert lines(path) == values(before)
        await sink.write(after)
    assert lines(path) == values([*before, *after])


async def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"y" * 70_000)
    async with opened(path):
        assert path.read_bytes() == b""


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path, compressed: bool) -> None:
    path, moved = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    first, second, third = make_records(2), make_records(2), make_records(2)
    async with opened(path, gzip=compressed) as sink:
        await sink.write(first)
        path.rename(moved)
        await sink.write(second)
        assert lines(moved) == values(first)
        assert lines(path) == values(second)
        # logrotate's `create`, and its `copytruncate`
        path.unlink()
        path.touch()
        await sink.write(first)
        os.truncate(path, 0)
        await sink.write(third)
    assert lines(path) == values(third)


async def test_two_sinks_never_write_one_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "events.jsonl") as sink:
        other = make(tmp_path / "events.jsonl")
        with pytest.raises(OSError, match="another sink or process"):
            await other.open()
        await other.close()
        await sink.write(make_records(1))
    async with opened(tmp_path / "events.jsonl") as other:
        await other.write(make_records(1))


@given(
    batches=st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=6), min_size=1, max_size=12),
    max_size=st.integers(1, 3000),
    reopen=st.integers(1, 12),
)
def test_rotation_loses_nothing_and_keeps_the_order(batches: list[list[int]], max_size: int, reopen: int) -> None:
    async def scenario(folder: Path) -> None:
        path = folder / "events.jsonl"
        written: list[Record] = []
        largest = 0
        for start in range(0, len(batches), reopen):
            async with opened(path, max_size=max_size) as sink:
                for sizes in batches[start : start + reopen]:
                    batch = [make_records(1, data={"text": "x" * size})[0] for size in sizes]
                    await sink.write(batch)
                    written += batch
                    largest = max(largest, sum(len(record.body) + 1 for record in batch))
        assert lines(*rotated(folder), path) == values(written)
        for file in [*rotated(folder), path]:
            assert file.stat().st_size <= max(max_size, largest)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def test_the_newest_rotated_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    stranger = tmp_path / "events-of-2025.jsonl"
    stranger.touch()
    batches = [make_records(2) for _ in range(12)]
    async with opened(path, max_size=1, keep=3) as sink:
        for batch in batches:
            await sink.write(batch)
    stranger.unlink()  # still there: other files are not removed
    assert len(rotated(tmp_path)) == 3
    assert lines(*rotated(tmp_path), path) == values([record for batch in batches[-4:] for record in batch])


async def test_a_rotation_never_writes_over_a_file(tmp_path: Path) -> None:
    path, old = tmp_path / "events.jsonl", tmp_path / "events-20990101T000000Z-0041.jsonl"
    old.write_text("{}\n")
    async with opened(path, max_size=1) as sink:
        for _ in range(3):
            await sink.write(make_records(1))
    assert old.read_text() == "{}\n"
    assert [int(name[1]) for name in map(ROTATED.fullmatch, [p.name for p in rotated(tmp_path)]) if name] == [
        41,
        42,
        43,
    ]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from ingestd.api.errors import SinkRetry
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.testing.sinks import make_records

async def main(path):
    sink = JsonlSink("archive", JsonlSink.Options(path=path))
    await sink.open()
    first, second = make_records(2), make_records(100)
    await sink.write(first)
    good = path.read_bytes()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) + 1000, hard))
    for _ in range(3):
        try:
            await sink.write(second)
        except SinkRetry as error:
            assert path.read_bytes() == good, "a failed write left something"
        else:
            raise AssertionError("the limit did not work")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await sink.write(second)
    await sink.close()
    assert path.read_bytes() == b"".join(record.body + b"\\n" for record in [*first, *second])

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_partial_write_is_undone(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk: the kernel writes a part, and then refuses."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "events.jsonl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def is_compressed(folder: Path) -> bool:
    """Whether all rotated files are compressed, without remaining parts."""
    return all(path.suffix == ".gz" for path in folder.iterdir() if path.name != "events.jsonl")


def rotated_before(folder: Path, number: int, content: bytes = b"{}\n") -> Path:
    path = folder / OLD.format(number)
    path.write_bytes(content)
    return path


def large_file(folder: Path, number: int) -> Path:
    """A sparse rotated file, which takes many seconds to compress."""
    path = rotated_before(folder, number)
    os.truncate(path, 16 << 30)
    return path


def with_gzip(*arguments: str | Path) -> bytes:
    """The output of the command `gzip`, which operators use."""
    done = subprocess.run(["gzip", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout or done.stderr


def parts(folder: Path) -> list[Path]:
    return [*folder.glob(".*.part")]


async def test_rotated_files_are_compressed_and_the_current_one_is_plain(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    batches = [make_records(20) for _ in range(5)]
    async with opened(path, max_size=1, gzip=True) as sink:
        for batch in batches:
            await sink.write(batch)
        await until(lambda: is_compressed(tmp_path))
    files = rotated(tmp_path)
    assert [name.suffix for name in files] == [".gz"] * 4
    for file, batch in zip([*files, path], batches, strict=True):
        assert lines(file) == values(batch)
    assert with_gzip("--test", "--verbose", *files).count(b"OK") == 4
    assert with_gzip("--decompress", "--stdout", *files) == b"".join(map(content_of, files))


async def test_a_compressed_file_has_the_mode_and_the_time_of_the_plain_one(tmp_path: Path) -> None:
    old = rotated_before(tmp_path, 1)
    old.chmod(0o604)
    os.utime(old, ns=(1_767_225_600_000_000_001, 1_767_225_600_123_456_789))
    async with opened(tmp_path / "events.jsonl", gzip=True):
        await until(lambda: is_compressed(tmp_path))
    (file,) = rotated(tmp_path)
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_mtime_ns) == (0o604, 1_767_225_600_123_456_789)


async def test_uncompressed_files_are_compressed_after_the_next_open(tmp_path: Path) -> None:
    """After a crash, or with `gzip` off before: plain files, a half compressed one, and one in both forms."""
    olds = [rotated_before(tmp_path, number, b'{"n":%d}\n' % number) for number in range(1, 5)]
    (tmp_path / f".{olds[0].name}.gz.0123abcd.part").write_bytes(b"\x1f\x8b half")
    (tmp_path / f"{olds[1].name}.gz").write_bytes(gzip.compress(olds[1].read_bytes()))
    (tmp_path / f"{olds[2].name}.gz").write_bytes(
        gzip.compress(olds[2].read_bytes())[:-9]
    )  # a broken copy by another program
    stranger = tmp_path / "events-20260101T000000Z-0001.jsonl.part"
    stranger.touch()
    async with opened(tmp_path / "events.jsonl", gzip=True):
        others = {stranger, tmp_path / "events.jsonl"}
        await until(lambda: [path.suffix for path in {*tmp_path.iterdir()} - others] == [".gz"] * 4)
        stranger.unlink()
        assert is_compressed(tmp_path)
    assert lines(*rotated(tmp_path)) == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]


async def test_numbering_and_keep_treat_plain_and_compressed_files_alike(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    batches = [make_records(2) for _ in range(13)]
    for start, compressed in ((0, True), (4, False), (8, True)):
        async with opened(path, max_size=1, keep=6, gzip=compressed) as sink:
            for batch in batches[start : start + 4]:
                await sink.write(batch)
            if compressed:
                await until(lambda: is_compressed(tmp_path))
    async with opened(path, max_size=1, keep=6) as sink:
        await sink.write(batches[12])
    files = rotated(tmp_path)
    numbers = [int(match[1]) for match in map(ROTATED.fullmatch, [file.name for file in files]) if match]
    assert numbers == [7, 8, 9, 10, 11, 12]
    assert lines(*files, path) == values([record for batch in batches[6:] for record in batch])
    assert [file.suffix for file in files] == [".gz"] * 5 + [".jsonl"]


async def test_writes_do_not_wait_for_compression_and_closing_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    large = large_file(tmp_path, 1)
    began = time.monotonic()
    async with opened(path, max_size=1, gzip=True) as sink:
        await until(lambda: parts(tmp_path))
        batches = [make_records(1) for _ in range(20)]
        for batch in batches:
            await sink.write(batch)
        assert parts(tmp_path)  # compression is still running
    assert time.monotonic() - began < 5
    assert parts(tmp_path) == []
    assert large.stat().st_size == 16 << 30
    large.unlink()
    assert archive(tmp_path) == values([record for batch in batches for record in batch])


async def test_a_file_beyond_keep_is_removed_even_during_its_compression(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    large_file(tmp_path, 1)
    async with opened(path, max_size=1, keep=2, gzip=True) as sink:
        await until(lambda: parts(tmp_path))
        for _ in range(4):
            await sink.write(make_records(1))
        await until(lambda: is_compressed(tmp_path))
    assert [file.name[-14:] for file in rotated(tmp_path)] == ["-0003.jsonl.gz", "-0004.jsonl.gz"]


def test_a_file_removed_at_the_end_of_its_compression_does_not_come_back(tmp_path: Path) -> None:
    plain, part = tmp_path / OLD.format(1), tmp_path / "part"
    part.touch()
    RotatedFiles(tmp_path / "events.jsonl", keep=1).replace(plain, part)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.logs(r"sink:archive: events-\S+ cannot be compressed: less than 32 MiB of the disk are free; it stays")
async def test_a_nearly_full_disk_stops_compression_but_not_the_writing_of_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path, megabytes=40):
        path, ballast = tmp_path / "events.jsonl", tmp_path / "ballast"
        written = make_records(2)
        async with opened(path, max_size=1, gzip=True) as sink:
            ballast.write_bytes(bytes(10 << 20))
            await sink.write(written)
            for _ in range(5):
                written += (batch := make_records(2))
                await sink.write(batch)
                await until(lambda: caplog.records)
            # Each rotation tries again, so there may be a part at this moment.
            assert suffixes_of(tmp_path) == [".jsonl"] * 5
            ballast.unlink()
            written += (batch := make_records(2))
            await sink.write(batch)  # this rotates the file, so compression is tried again
            await until(lambda: is_compressed(tmp_path))
        assert archive(tmp_path) == values(written)
    assert len(caplog.records) == 1


@pytest.mark.logs(r"sink:archive: events-\S+ cannot be compressed: less than 32 MiB of the disk are free; it stays")
async def test_on_a_full_disk_writes_fail_and_leave_nothing_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=40):
        path, ballast = tmp_path / "events.jsonl", tmp_path / "ballast"
        written = make_records(20)
        async with opened(path, max_size=10_000, gzip=True) as sink:
            await sink.write(written)
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            for _ in range(3):
                with pytest.raises(SinkRetry, match="No space left"):
                    await sink.write(make_records(100))
            ballast.unlink()
            for _ in range(3):
                written += (batch := make_records(100))
                await sink.write(batch)
            await until(lambda: is_compressed(tmp_path))
        assert archive(tmp_path) == values(written)


@pytest.mark.logs(r"sink:archive: events-\S+-0001\.jsonl cannot be compressed: File too large; it stays")
async def test_a_file_that_cannot_be_compressed_stays_and_delays_no_other(tmp_path: Path) -> None:
    """A limit on the size of files simulates a disk that becomes full during the compression."""
    content = os.urandom(1 << 20).replace(b"\n", b" ") + b"\n"  # its compressed form is larger
    old = rotated_before(tmp_path, 1, content)
    rotated_before(tmp_path, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content), hard))
    try:
        async with opened(tmp_path / "events.jsonl", gzip=True):
            await until(lambda: [*tmp_path.glob("*-0002.jsonl.gz")])
            await until(lambda: not parts(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in rotated(tmp_path)] == [old.name, f"{OLD.format(2)}.gz"]
    assert old.read_bytes() == content
    async with opened(tmp_path / "events.jsonl", gzip=True):
        await until(lambda: is_compressed(tmp_path))
    assert content_of(rotated(tmp_path)[0]) == content


KILLED = """
import asyncio, os, signal, sys, tempfile
from pathlib import Path
from ingestd.api.options import Size
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.testing.sinks import make_records

STEPS = {"open", "os.rename", "os.remove", "os.chmod", "os.utime", "os.listdir", "os.scandir"}

async def main(path):
    sink = JsonlSink("archive", JsonlSink.Options(path=path, max_size=Size(1), keep=3, gzip=True))
    await sink.open()
    for batch in (make_records(3) for _ in range(5)):
        await sink.write(batch)
        for record in batch:
            os.write(1, f"{path.parent.name} {record.decode()['id']}\\n".encode())
        while len(list(path.parent.glob("*.gz"))) != len(list(path.parent.iterdir())) - 1:
            await asyncio.sleep(0.001)
    await sink.close()

def child(folder, deadly):
    step = 0
    def count(event, arguments):
        nonlocal step
        if event in STEPS and arguments and str(arguments[0]).startswith((str(folder), "3")):
            step += 1
            if step == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    asyncio.run(main(folder / "events.jsonl"))
    os._exit(0)

deadly, code = 0, -signal.SIGKILL
while code == -signal.SIGKILL:
    deadly += 1
    folder = Path(sys.argv[1], str(deadly))
    folder.mkdir()
    pid = os.fork()
    if not pid:
        child(folder, deadly)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code)
"""


def test_a_kill_at_any_step_of_rotation_or_compression_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    acknowledged: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, identity = line.split()
        acknowledged.setdefault(name, []).append(identity)
    folders = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(folders) > 50

    async def finish(folder: Path) -> None:
        async with opened(folder / "events.jsonl", max_size=1, keep=3, gzip=True):
            await until(lambda: is_compressed(folder))

    for folder in folders:
        expected = acknowledged.get(folder.name, [])
        for _ in range(2):  # after the crash, and after the next start
            if (folder / "events.jsonl").exists():
                held = [value["id"] for value in archive(folder)]
                kept = expected[-9:]  # a new current file is empty, so only three files have records
                assert [each for each in held if each in kept] == kept
                assert set(held) - set(expected) <= set(held[-3:])
            asyncio.run(finish(folder))
    assert len(acknowledged[folders[-1].name]) == 15


@pytest.mark.parametrize("member", ["receivedAt", "decidedAt", "erasedAt"])
async def test_an_old_file_is_rotated_by_the_next_write(tmp_path: Path, member: str) -> None:
    path = tmp_path / "events.jsonl"
    line = json.dumps({"id": "a", member: format_time(now() - 3_700_000)}).encode() + b"\n{}\n"
    for every, files in (("2h", 0), ("1h", 1)):
        path.write_bytes(line)
        first, second = make_records(1), make_records(1)
        async with opened(path, rotate_every=Duration.parse(every)) as sink:
            assert rotated(tmp_path) == []
            await sink.write(first)
            await sink.write(second)
        assert len(rotated(tmp_path)) == files
        assert lines(path)[-2:] == values([*first, *second])
    assert rotated(tmp_path)[0].read_bytes() == line
    assert len(lines(path)) == 2


@pytest.mark.parametrize("line", ["null", "{}", '{"receivedAt":7}', '{"receivedAt":"soon"}', "no JSON", ""])
async def test_a_file_without_a_time_in_its_first_line_is_as_old_as_its_last_write(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    for age, files in ((3000, 0), (3700, 1)):
        path.write_text(f"{line}\n")
        os.utime(path, (time.time() - age,) * 2)
        async with opened(path, rotate_every=Duration.parse("1h")) as sink:
            await sink.write(make_records(1))
        assert len(rotated(tmp_path)) == files


async def test_an_empty_file_is_never_rotated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    os.utime(path, (0, 0))
    async with opened(path, rotate_every=Duration.parse("1s")) as sink:
        await sink.write(make_records(1))
    assert rotated(tmp_path) == []


@given(
    pauses=st.lists(st.one_of(st.integers(0, 120), st.just(-500)), min_size=1, max_size=30),
    every=st.integers(1, 100),
    meanwhile=st.sampled_from(["nothing", "moved", "truncated", "opened again"]),
)
def test_no_file_has_lines_of_more_than_rotate_every(pauses: list[int], every: int, meanwhile: str) -> None:
    """Times are in milliseconds, of a clock that may be set back."""
    with tempfile.TemporaryDirectory() as name:
        folder, clock = Path(name), now()
        path = folder / "events.jsonl"
        file = LineFile(path, RotatedFiles(path, keep=None), max_size=10_000, rotate_every=every, now=lambda: clock)
        for turn, pause in enumerate(pauses):
            clock += pause
            if turn == len(pauses) // 2 and path.exists():
                if meanwhile == "moved":
                    path.rename(folder / "events-of-before")
                elif meanwhile == "truncated":
                    os.truncate(path, 0)
                elif meanwhile == "opened again":
                    os.utime(path, ns=(clock * 1_000_000,) * 2)
                    file.close()
            file.append(json.dumps({"receivedAt": format_time(clock), "turn": turn}).encode() + b"\n")
        file.close()
        (folder / "events-of-before").unlink(missing_ok=True)
        for each in [*rotated(folder), path]:
            times = [parse_time(line["receivedAt"]) or 0 for line in lines(each)]
            assert times[-1] - times[0] < every
        turns = [line["turn"] for line in lines(*rotated(folder), path)]
        assert turns == sorted(turns)


async def write_megabytes(sink: JsonlSink, count: int) -> None:
    """Write four lines for each megabyte, with a separate write for each line."""
    body = b'"' + b"x" * ((1 << 18) - 3) + b'"'
    for _ in range(4 * count):
        await sink.write([Record("event", 0, body)])


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The parts of files, from and to a byte, that the system is told to remove from its page cache."""
    parts = []
    advise = os.posix_fadvise

    def note(fd: int, start: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        parts.append((start, start + length))
        advise(fd, start, length, advice)

    monkeypatch.setattr("os.posix_fadvise", note)
    return parts


async def show_in_page_cache(folder: Path, expected: Callable[[list[bool]], bool], *, gzip: bool = False) -> None:
    """Write 24 MB, and fail unless the pages in memory are as expected.

    A system that is short of memory takes pages of any file. So there are five attempts, and the test is skipped if
    all fail and files beside them, written without a sink, have lost pages too.
    """
    is_short_of_memory = False
    for attempt in range(5):
        path, beside = folder / f"{attempt}.jsonl", folder / f"{attempt}.beside"
        async with opened(path, gzip=gzip) as sink:
            with beside.open("wb") as plain:
                for _ in range(24):
                    await write_megabytes(sink, 1)
                    plain.write(bytes(1 << 20))
                    plain.flush()
                    os.fsync(plain.fileno())
            pages, plain_pages = held_in_memory(path), held_in_memory(beside)
        if expected(pages):
            return
        is_short_of_memory |= not all(plain_pages)
    if is_short_of_memory:
        pytest.skip("the system is short of memory, and removes pages of any file")
    pytest.fail(f"{sum(pages)} of {len(pages)} pages are in memory")


async def test_lines_far_from_the_end_leave_the_page_cache(disk: Path, released: list[tuple[int, int]]) -> None:
    async with opened(disk / "events.jsonl") as sink:
        await write_megabytes(sink, 24)
    starts, ends = zip((0, 0), *released, strict=True)
    assert ends[:-1] == starts[1:]  # no part is left out
    assert 12 << 20 <= ends[-1] <= 16 << 20  # readers that follow the file need the last 8 MB
    await show_in_page_cache(disk, lambda pages: not any(pages[: len(pages) // 2]) and all(pages[-len(pages) // 3 :]))


async def test_a_rotated_file_leaves_the_page_cache(disk: Path) -> None:
    async with opened(disk / "events.jsonl", max_size=4 << 20) as sink:
        await write_megabytes(sink, 5)
    (old,) = rotated(disk)
    assert not any(held_in_memory(old))


async def test_lines_to_be_compressed_stay_in_the_page_cache(disk: Path, released: list[tuple[int, int]]) -> None:
    async with opened(disk / "events.jsonl", gzip=True) as sink:
        await write_megabytes(sink, 24)
    assert not released
    await show_in_page_cache(disk, all, gzip=True)


async def test_a_file_system_without_fadvise_fails_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: int) -> None:
        raise OSError(errno.EINVAL, "an answer of some file systems")

    monkeypatch.setattr("os.posix_fadvise", refuse)
    async with opened(tmp_path / "events.jsonl", max_size=16 << 20) as sink:
        await write_megabytes(sink, 17)
    assert len(lines(*rotated(tmp_path), tmp_path / "events.jsonl")) == 4 * 17


async def test_check_finds_the_error_that_a_write_would_get(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "events.jsonl", tmp_path, Path("/dev/full")):
        sink = make(path)
        with pytest.raises(OSError, match=r"not a|Is a dir|Not a dir"):
            await sink.check()
        with pytest.raises(OSError, match=r"not a|Is a dir|Not a dir|File exists"):
            await sink.open()
        await sink.close()
    assert not (tmp_path / "new").exists()
    sink = make(tmp_path / "new" / "events.jsonl")
    await sink.check()
    await sink.close()
    assert not (tmp_path / "new").exists()  # a check makes nothing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": "0B"}, r"max_size: expected more than 0"),
        ({"keep": 0}, r"keep: expected a whole number >= 1"),
        ({"keep": -1}, r"keep: expected a whole number >= 1"),
        ({"rotate_every": "0s"}, r"rotate_every: expected more than 0"),
        ({"gzip": 9}, r"gzip: expected true or false"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"x\.toml: sinks\.archive\.{message}"):
        read_options(JsonlSink.Options, {"path": "x", **options}, path="sinks.archive", source="x.toml", base=tmp_path)


def test_a_path_that_looks_compressed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^sinks\.archive\.path: the current file is never compressed; remove \.gz"):
        make(tmp_path / "events.jsonl.gz")
