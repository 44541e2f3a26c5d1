"""`ingestd events import` trusts no file: what visitors, vendors and damaged disks may have written into it."""

from __future__ import annotations

import gzip
import json
import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import CommandError
from tests.support.import_target import Target
from tests.support.imports import at, lines_of, message, written
from tests.support.terminal import HOSTILE

RECORD = {
    "id": "01900000-0000-7000-8000-000000000001", "type": "event", "tenant": "shop", "endpoint": "customer-events",
    "signed": True, "receivedAt": at(2), "timestamp": at(2), "key": "Order Completed", "data": {"order_id": "forged"},
    "anonymousId": "v", "context": {},
}  # fmt: skip
IDENTIFY = {
    **{name: value for name, value in RECORD.items() if name not in {"key", "data"}},
    "id": "01900000-0000-7000-8000-000000000002", "type": "identify", "traits": {}, "userId": "victim",
}  # fmt: skip
ERASURE = {
    "type": "erasure", "id": "01900000-0000-7000-8000-000000000003", "tenant": "shop", "erasedAt": at(0, minutes=-1),
    "userId": "victim", "anonymousIds": ["victim"],
}  # fmt: skip
FORGED = [RECORD, {**RECORD, "tenant": "other"}, IDENTIFY, ERASURE]
"""Lines that a visitor can write into an archive of messages."""


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path, "target")


@pytest.mark.parametrize("forged", FORGED)
def test_a_message_that_looks_like_a_record_is_a_faulty_line(target: Target, forged: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="1 lines were not imported"):
        target.take([message(1), forged, message(2)], tenant="shop")
    with pytest.raises(CommandError, match="1 lines were not imported"):
        target.take([forged, message(3)], tenant="shop", format="segment")
    assert [(each["type"], each["signed"], each["messageId"]) for each in target.exported()] == [
        ("event", False, f"message-{number}") for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("tenant", [None, "shop"])
def test_files_that_begin_with_it_are_not_guessed(target: Target, forged: dict[str, Any], tenant: str | None) -> None:
    many = [{**forged, "id": f"01900000-0000-7000-8000-{number:012}"} for number in range(400)]
    for files in ([[forged, message(1)]], [[*many, message(1)]], [[forged], [message(1)]], [[message(1)], [forged]]):
        with pytest.raises(CommandError, match=r"looks like a record of ingestd, but .*: say --format"):
            target.take(*files, tenant=tenant)
    assert target.exported() == []


def test_a_pipe_that_begins_with_it_is_not_guessed(target: Target, tmp_path: Path) -> None:
    def piped(*lines: Any, **arguments: Any) -> None:
        reading, writing = os.pipe()
        os.write(writing, lines_of(lines))
        os.close(writing)
        target.take(Path(f"/dev/fd/{reading}"), **arguments)
        os.close(reading)

    with pytest.raises(CommandError, match=r"is a pipe, which can be read only once; .*: say --format"):
        piped(ERASURE, message(1), tenant="shop")
    assert target.exported() == []
    piped(RECORD)
    piped({**RECORD, "id": IDENTIFY["id"]}, tenant="shop", format="record")
    piped(message(1), tenant="shop")
    assert len(target.exported()) == 3


def test_with_a_tenant_records_of_other_tenants_are_faulty_lines(target: Target, tmp_path: Path) -> None:
    lines = [*FORGED, {**ERASURE, "tenant": "other", "id": "01900000-0000-7000-8000-000000000004"}]
    faults = tmp_path / "faults.jsonl"
    with pytest.raises(CommandError, match="2 lines were not imported"):
        target.take(lines, tenant="shop", errors=faults)
    assert {record["tenant"] for record in target.exported()} == {"shop"}
    told = [json.loads(line)["errors"][0]["pointer"] for line in faults.read_bytes().splitlines()]
    assert told == ["/tenant", "/tenant"]


def test_only_the_owner_can_read_the_faults(target: Target, tmp_path: Path) -> None:
    faults = tmp_path / "faults.jsonl"
    faults.write_text("older\n" * 100)
    faults.chmod(0o644)
    for _ in range(2):
        with pytest.raises(CommandError):
            target.take([{"tenant": "shop", "type": "event"}], errors=faults)
        assert stat.S_IMODE(faults.stat().st_mode) == 0o600
        assert len(faults.read_bytes().splitlines()) == 1
        faults.unlink()


def test_nothing_in_a_file_reaches_the_terminal_as_it_is(
    target: Target, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        line
        for text in HOSTILE
        for line in (
            message(1, event=text), message(1, type=text), message(1, receivedAt=text), {**RECORD, "type": text},
            message(1, properties={"price": text, text: 1}), message(1, properties={"products": {text: 1}}),
            {text: 1, "tenant": text},
        )
    ]  # fmt: skip
    names = [text.replace("/", "").replace("\0", "") for text in HOSTILE]
    for format_ in ("segment", "record"):
        for name in names:
            with pytest.raises(CommandError):
                target.take(written(tmp_path / "files", lines[:8], name), tenant="shop", format=format_, errors=None)
        with pytest.raises(CommandError):
            target.take(lines, tenant="shop", format=format_, errors=tmp_path / "faults")
        assert (tmp_path / "faults").read_bytes().replace(b"\n", b"").decode("ascii").isprintable()
    out, err = capfd.readouterr()
    assert f"{out}{err}".replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lines_of([message(1)]).decode().encode("utf-16"), "it is in UTF-16"),
        (b"\x28\xb5\x2f\xfd rest", "it is compressed with zstd"),
        (gzip.compress(lines_of([message(1)])) + b"junk", "cannot be read"),
        (gzip.compress(b"\n" * 1_100_000), "more than 1000000 lines are blank"),
        (gzip.compress(b"\0" * 100), "the body is not JSON"),
        (b"\xff" * 9, "the body is not JSON"),
    ],
    ids=["UTF-16", "zstd", "junk behind gzip", "blank lines", "zero bytes", "no text"],
)
def test_a_file_that_cannot_be_read_is_one_fault(
    target: Target, tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(CommandError, match="1 lines were not imported"):
        target.take(file, [message(2)], tenant="shop")
    assert f"{file}:" in (told := capfd.readouterr().err)
    assert reason in told
    assert target.exported()[-1]["messageId"] == "message-2"


def test_a_line_without_an_end_takes_no_memory(
    target: Target, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.gz"
    with gzip.open(file, "wb", 1) as packed:
        packed.write(lines_of([message(1)]))
        for _ in range(64):
            packed.write(b"x" * (1 << 20))
        packed.write(b"\n" + lines_of([message(2)]))
    for bound, imported in ((None, 2), (1 << 20, 2)):
        if bound is not None:
            monkeypatch.setattr("ingestd.plugins.tools.importing.lines._ENDLESS", bound)
        tracemalloc.start()
        with pytest.raises(CommandError):
            target.take(file, tenant="shop")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 60_000_000
        assert f"{file}:2: The line is longer than 4194304 bytes." in (told := capfd.readouterr().err)
        assert ("rest of the file cannot be read" in told) is (bound is not None)
        assert len(target.exported()) == imported
