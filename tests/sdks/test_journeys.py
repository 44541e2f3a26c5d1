"""A journey with each SDK for servers, set up as docs/sdks.md shows: the records are what the SDK was told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.times import format_time, now, parse_time
from tests.support.daemon import Shop
from tests.support.sdk_journeys import journey, record_of, summary
from tests.support.sdks import MODULES, PATIENCE, ServerSdk, Start, lines_of

COPIED = "message-that-comes-in-many-ways"
TIMED = format_time(now() - 7_200_000)
"""The time that a caller gives for an event."""


@dataclass(frozen=True)
class Sent:
    began: str
    failures: dict[str, list[str]]
    records: list[dict[str, Any]]

    def of(self, sdk: ServerSdk) -> list[dict[str, Any]]:
        """The records of the visitors and users of this SDK."""
        prefix = f"{slug(sdk)}-"
        return [
            record
            for record in self.records
            if record["anonymousId"].startswith(prefix) or (record["userId"] or "").startswith(prefix)
        ]


def slug(sdk: ServerSdk) -> str:
    return sdk.package.replace("/", "-").lstrip("@")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory, server_sdks: list[ServerSdk], start: Start) -> Sent:
    """All SDKs send their journeys to one daemon at the same time."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    began = format_time(now())
    with shop.serve() as daemon:
        own = {"key": "Page View", "anonymousId": "copied", "data": {}, "messageId": COPIED}
        assert daemon.post("/track", own, shop.public.id).status == 200
        copied = ("track", {"event": "Page View", "anonymousId": "copied", "messageId": COPIED})
        programs = {}
        for sdk in server_sdks:
            host = f"127.0.0.1:{daemon.port}"
            program = programs[sdk.package] = start(sdk, host, shop.public.id)
            timed = ("track", {"event": "Page View", "anonymousId": f"timed {slug(sdk)}", "timestamp": TIMED})
            more = [copied] if sdk.language == "go" else [copied, timed]
            program.make([*journey(slug(sdk), has_category=sdk.has_category), *more])
        failures = {package: program.end() for package, program in programs.items()}
    return Sent(began, failures, [record for record in shop.archived() if "endpoint" in record])


def in_order(summaries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(summaries, key=lambda each: json.dumps(each, sort_keys=True))


def expected(sdk: ServerSdk) -> Iterator[dict[str, Any]]:
    """The records of the journey. A call without a user has the user that the visitor is linked to by then."""
    links: dict[str, str] = {}
    for call in journey(slug(sdk), has_category=sdk.has_category):
        record = record_of(call)
        user, visitor = record["userId"], record["anonymousId"]
        if record["type"] == "identify":
            links[visitor] = user
        yield {**record, "userId": user or links.get(visitor)}


def test_no_sdk_reports_a_failure(sent: Sent, sdk: ServerSdk) -> None:
    assert sent.failures[sdk.package] == []


def test_the_records_are_what_the_sdk_was_told(sent: Sent, sdk: ServerSdk) -> None:
    told = list(expected(sdk))
    visitors = {record["anonymousId"] for record in told}
    stored = [summary(record) for record in sent.of(sdk)]
    # A call without a visitor has one that is derived from the user.
    named = [{**record, "anonymousId": None} if record["anonymousId"] not in visitors else record for record in stored]
    assert in_order(named) == in_order(told)


def test_a_user_without_a_visitor_has_one_that_is_always_the_same(sent: Sent, sdk: ServerSdk) -> None:
    user = f"{slug(sdk)}-user"
    derived = [
        record["anonymousId"]
        for record in sent.of(sdk)
        if record["userId"] == user and not record["anonymousId"].startswith(slug(sdk))
    ]
    assert len(derived) == 2
    assert len({*derived}) == 1


def test_each_record_has_its_message_its_library_and_its_time(sent: Sent, sdk: ServerSdk) -> None:
    records = sent.of(sdk)
    assert len({record["messageId"] for record in records}) == len(records)
    assert {record["context"]["library"]["name"] for record in records} == {sdk.library}
    assert {record["endpoint"] for record in records} == {"segment"}
    assert {record["signed"] for record in records} == {False}
    assert all(sent.began <= record["timestamp"] <= record["receivedAt"] for record in records)


def test_the_time_of_the_caller_is_the_time_of_the_event(sent: Sent, sdk: ServerSdk) -> None:
    if sdk.language == "go":
        pytest.skip("the program for Go gives no times")
    (record,) = [record for record in sent.records if record["anonymousId"] == f"timed {slug(sdk)}"]
    at, given = parse_time(record["timestamp"]), parse_time(TIMED)
    assert at is not None
    assert given is not None
    assert 0 <= at - given < 60_000  # it is corrected by the time between sending and receipt


def test_a_message_that_comes_from_every_sdk_and_to_track_is_stored_once(sent: Sent) -> None:
    (record,) = [record for record in sent.records if record["messageId"] == COPIED]
    assert record["endpoint"] == "track"


def test_the_lines_for_sending_to_both_give_both_copies_one_id(tmp_path: Path) -> None:
    """Both copies go to one daemon here, which stores one of them."""
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        host = f"127.0.0.1:{daemon.port}"
        lines = lines_of("Sending to both", host, shop.public.id)
        lines = lines.replace("api.segment.io", host).replace("key-at-segment", shop.public.id)
        call = json.dumps({"anonymousId": "visitor", "event": "Product Viewed", "properties": {"product_id": "p-1"}})
        (tmp_path / "node_modules").symlink_to(MODULES)
        main = tmp_path / "main.mjs"
        main.write_text(f"{lines}\ntrack({call})\nawait segment.closeAndFlush()\nawait ingestd.closeAndFlush()\n")
        subprocess.run(["node", main], check=True, timeout=PATIENCE)
        accepted, duplicate = (
            daemon.metric(f'ingestd_events_total{{endpoint="segment",key="Product Viewed",outcome="{outcome}"}}')
            for outcome in ("accepted", "duplicate")
        )
    assert (accepted, duplicate, len(shop.archived())) == (1, 1, 1)
