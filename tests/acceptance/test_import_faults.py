"""`ingestd events import` of faulty lines and files: each fault is reported with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.daemon import Shop, run_ingestd
from tests.support.imports import TENANT, at, import_, lines_of, message, run_import, written


def test_each_faulty_line_is_reported_with_its_place_and_the_others_are_imported(
    tmp_path: Path, moved: list[dict[str, Any]]
) -> None:
    shop = Shop(tmp_path)
    event, identify, attribution, erasure = (
        next(record for record in moved if record["type"] == type_)
        for type_ in ("event", "identify", "attribution", "erasure")
    )
    blank = next(record for record in moved if record.get("erased"))
    nested = b"[" * 300 + b"]" * 300
    records: list[tuple[Any, str, str]] = [
        (b"{", "", "the body is not JSON"),
        (b"17", "", "expected a JSON object, got number"),
        (b"\xff{}", "", "the body is not JSON"),
        (b'{"a": "\\ud800"}', "", "half of a surrogate pair"),
        (b'{"id": 1, "tenant": 2, "x": %s}' % nested, "", "nested more than 200"),
        (b'{"a": "%s"}' % (b"x" * 5_000_000), "", "longer than"),
        ({}, "/type", "expected event, identify"),
        (message(1), "/type", "expected event, identify"),
        ({**event, "tenant": "other"}, "/tenant", "another tenant than shop"),
        ({**event, "tenant": "ä"}, "/tenant", "expected str matching regex"),
        ({**event, "id": "0aaaaaaa-aaaa-7aaa-8aaa-aaaaaaaaaaaa"}, "/id", "in the future"),
        ({**event, "receivedAt": "9999-12-31T23:59:59Z"}, "/receivedAt", "in the future"),
        ({**event, "id": "17"}, "/id", "expected str matching regex"),
        ({**event, "id": 17}, "/id", "expected str, got int"),
        ({**event, "tenant": ""}, "/tenant", "expected str matching regex"),
        ({**event, "type": "evnt"}, "/type", "expected event, identify, attribution"),
        ({**event, "type": ["event"]}, "/type", "expected event, identify, attribution"),
        ({**event, "receivedAt": "noon"}, "/receivedAt", "expected an RFC 3339 time"),
        ({**event, "receivedAt": at(-1)}, "/receivedAt", "in the future"),
        ({**event, "timestamp": "1999-12-31T23:59:59Z"}, "/timestamp", "before the year 2000"),
        ({**event, "timestamp": at(0), "receivedAt": at(1)}, "/timestamp", "after receivedAt"),
        ({**event, "colour": "red"}, "/colour", "unknown field"),
        ({**event, "signed": "yes"}, "/signed", "expected bool"),
        ({**event, "traits": {}}, "/traits", "not a member of a record of the type event"),
        ({**event, "key": "Page Seen"}, "/key", "is not a supported event key"),
        ({**event, "key": None}, "/key", "required, but missing"),
        ({**event, "data": []}, "/data", "expected object"),
        ({**event, "key": "Product Viewed", "data": {"price": "1"}}, "/data/price", "expected number, got string"),
        ({**event, "anonymousId": None}, "/anonymousId", "required, but missing"),
        ({**event, "anonymousId": "x" * 513}, "/anonymousId", "at most 512 characters"),
        ({**event, "sessionId": "mine"}, "/sessionId", "of the form"),
        ({**event, "messageId": ""}, "/messageId", "at least 1"),
        ({**event, "context": {"page": {"url": 1}}}, "/context/page/url", "expected string"),
        ({**event, "import": {"state": 1}}, "/import/state", "expected bool"),
        ({**event, "erased": True}, "/erased", "still has ids or content"),
        ({**blank, "userId": "bob"}, "/erased", "still has ids or content"),
        ({**identify, "traits": []}, "/traits", "expected object"),
        ({**identify, "traits": {str(n): n for n in range(501)}}, "/traits", "at most 500 traits"),
        ({**identify, "key": "Page View"}, "/key", "not a member of a record of the type identify"),
        ({**attribution, "value": {}}, "/value/revenue", "missing required field"),
        ({**attribution, "credits": {"linear": [{"eventId": 1}]}}, "/credits", "expected str"),
        ({**attribution, "decidedAt": at(-1)}, "/decidedAt", "in the future"),
        ({**erasure, "anonymousIds": [1]}, "/anonymousIds/0", "expected str"),
        ({**erasure, "tenant": None}, "/tenant", "expected str"),
    ]
    messages: list[tuple[Any, str, str]] = [
        (b'{"a": "\x00"}', "", "the body is not JSON"),
        ({}, "/type", "expected track, page"),
        (event, "", "a record of ingestd, in a file of messages"),
        (identify, "", "a record of ingestd, in a file of messages"),
        (attribution, "", "a record of ingestd, in a file of messages"),
        (message(1, type="trak"), "/type", "expected track, page"),
        (message(2, event="Shoe Seen"), "/event", "is not a supported event key"),
        (message(3, properties={"price": "1,5"}), "/properties/price", "expected number"),
        (message(4, timestamp=None, receivedAt=None), "/timestamp", "required"),
        (message(5, timestamp="yesterday", receivedAt=None), "/timestamp", "required"),
        (message(6, timestamp=at(-2), receivedAt=None), "/timestamp", "in the future"),
        (message(7, timestamp="1970-01-01T00:00:00Z"), "/timestamp", "before the year 2000"),
        (message(8, receivedAt=1), "/receivedAt", "expected an RFC 3339 time"),
        (message(9, receivedAt=at(-2)), "/receivedAt", "in the future"),
        (message(10, properties={"query": "x" * 1_100_000}), "", "larger than 1048576 bytes"),
        (message(11, type="group", groupId=None), "/groupId", "expected the id"),
    ]

    def good(number: int, *, is_record: bool) -> dict[str, Any]:
        return {**event, "id": str(UUID(int=number)), "messageId": None} if is_record else message(number)

    for format_, faulty in (("record", records), ("segment", messages)):
        content = b"\xef\xbb\xbf"
        for number, (line, _, _) in enumerate(faulty):
            content += (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\r\n\n"
            content += json.dumps(good(1000 + number, is_record=format_ == "record")).encode() + b"\n"
        file, faults = tmp_path / f"{format_}.jsonl", tmp_path / "faults.jsonl"
        file.write_bytes(content)
        arguments = (file, *TENANT, "--format", format_, "--errors", faults)
        dry = import_(shop, *arguments, "--dry-run", code=1)
        told = import_(shop, *arguments, code=1)
        assert told == {**dry, "dryRun": False}
        assert told["counts"]["imported"] == len(faulty)
        assert sum(told["counts"].values()) == told["lines"] == 2 * len(faulty)
        reports = [json.loads(line) for line in faults.read_bytes().splitlines()]
        assert [report["line"] for report in reports] == [3 * number + 1 for number in range(len(faulty))]
        for (line, pointer, reason), report in zip(faulty, reports, strict=True):
            assert report["file"] == str(file)
            found = [(error["pointer"], error["message"]) for error in report["errors"]] or [("", report["message"])]
            assert any(place == pointer and reason in text for place, text in found), (str(line)[:200], report)
    shown = run_import(shop, file, *TENANT, "--format", "segment")
    text = shown.stderr.decode()
    assert shown.returncode == 1
    assert f"{file}:{3 * 11 + 1}" not in text  # only the first ones are shown
    assert f"{file}:19: /event: " in text
    assert text.splitlines()[-1].endswith(f"{len(faulty)} lines were not imported")
    assert "Traceback" not in text
    few = run_import(shop, file, *TENANT, "--format", "segment", "--max-errors", "3")
    assert few.returncode == 1
    assert "the rest was not read; see --max-errors" in few.stderr.decode()


def test_files_may_be_compressed_damaged_or_a_pipe(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    whole = gzip.compress(lines_of([message(1)])) + gzip.compress(lines_of([message(2)]))
    (tmp_path / "whole.gz").write_bytes(whole)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(lines_of([message(number) for number in range(3, 500)]))[:-300])
    assert import_(shop, tmp_path / "whole.gz", *TENANT)["counts"] == {"imported": 2}
    cut = run_import(shop, tmp_path / "cut.gz", tmp_path / "whole.gz", *TENANT, "--json")
    assert cut.returncode == 1
    counts = json.loads(cut.stdout)["counts"]
    assert counts["invalid"] == 1
    assert counts["duplicate"] == 2  # the next file is read
    assert counts["imported"] > 100
    piped = import_(shop, "-", *TENANT, stdin=gzip.compress(lines_of([message(600), message(1)])))
    assert piped["counts"] == {"imported": 1, "duplicate": 1}
    assert import_(shop, "-", *TENANT, stdin=b"")["counts"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nowhere.jsonl"], 1, "nowhere.jsonl: No such file"),
        (["folder", *TENANT], 1, "folder: no file below this folder ends in .json"),
        (["-", "-", *TENANT], 1, "can be given once only"),
        (["messages.jsonl"], 1, "say with --tenant whose messages these are"),
        (["messages.jsonl", "--format", "segmnt"], 1, "did you mean segment?"),
        (["messages.jsonl", "--format", "record"], 1, "1 lines were not imported"),
        (["messages.jsonl", "--tenant", "my shop"], 2, "expected a name of 1 to 64 letters"),
        (["messages.jsonl", *TENANT, "--errors", "messages.jsonl"], 1, "this file is to be imported"),
        (["messages.jsonl", *TENANT, "--errors", "nowhere/faults"], 1, "nowhere/faults: No such file"),
        (["messages.jsonl", *TENANT, "--max-errors", "0"], 2, "expected a whole number from 1"),
    ],
)
def test_a_wrong_command_line_imports_nothing(tmp_path: Path, arguments: list[str], code: int, reason: str) -> None:
    shop = Shop(tmp_path)
    written(tmp_path, [message(1)], "messages.jsonl")
    (tmp_path / "folder").mkdir()
    done = run_ingestd("events", "import", *arguments, config=shop.config, folder=tmp_path)
    assert done.returncode == code
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert shop.stored() == []
