"""The jsonl sink: whole lines, whatever happens to the disk, the file or the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.events import Record
from ingestd.options import Size, read_options
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.testing.sinks import SinkContract, make_records

ROTATED = re.compile(r"events-\d{8}T\d{6}Z-(\d{4,})\.jsonl")


def make(path: Path, *, max_size: int = 100 << 20, keep: int | None = None) -> JsonlSink:
    return JsonlSink("archive", JsonlSink.Options(path=path, max_size=Size(max_size), keep=keep))


@asynccontextmanager
async def opened(path: Path, *, max_size: int = 100 << 20, keep: int | None = None) -> AsyncIterator[JsonlSink]:
    sink = make(path, max_size=max_size, keep=keep)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


def rotated(folder: Path) -> list[Path]:
    """The rotated files, oldest first; every file beside events.jsonl must be one."""
    found = {}
    for path in folder.iterdir():
        if path.name != "events.jsonl":
            match = ROTATED.fullmatch(path.name)
            assert match is not None, path
            found[int(match[1])] = path
    return [found[number] for number in sorted(found)]


def lines(*paths: Path) -> list[Any]:
    """What the files hold; all lines must be whole."""
    content = b"".join(path.read_bytes() for path in paths)
    assert not content or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def values(records: Sequence[Record]) -> list[Any]:
    return [record.decode() for record in records]


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


async def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, moved = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    first, second, third = make_records(2), make_records(2), make_records(2)
    async with opened(path) as sink:
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
@settings(max_examples=60, deadline=None)
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
    stranger.unlink()  # nobody else's file was touched
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
        except OSError as error:
            assert path.read_bytes() == good, "a failed write left something"
        else:
            raise AssertionError("the limit did not work")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await sink.write(second)
    await sink.close()
    assert path.read_bytes() == b"".join(record.body + b"\\n" for record in [*first, *second])

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_write_that_fails_half_way_is_taken_back(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the kernel takes a part, then refuses."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "events.jsonl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_check_names_what_a_write_would_meet(tmp_path: Path) -> None:
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
    assert not (tmp_path / "new").exists()  # it only looks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": "0B"}, r"max_size: expected more than 0"),
        ({"keep": 0}, r"keep: expected `int` >= 1"),
        ({"keep": -1}, r"keep: expected `int` >= 1"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"x\.toml: sinks\.archive\.{message}"):
        read_options(JsonlSink.Options, {"path": "x", **options}, path="sinks.archive", source="x.toml", base=tmp_path)
