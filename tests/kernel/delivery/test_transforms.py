"""Transforms change the records for one sink. A failed transform is the fault of its record."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestd.api import times
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Envelope, Record
from ingestd.api.options import Duration, read_options
from ingestd.api.sink import Sink, Transform
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.dead_letters import read_letters
from ingestd.delivery.operator_commands import Replay, Retry, give_command
from ingestd.delivery.options import BatchOptions
from ingestd.delivery.progress import PROGRESS
from ingestd.delivery.transforms import RecordTransform, make_transform
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.journals import append, running, until


class Kept(Sink):
    """Keeps the decoded records. It rejects those with one of the given numbers."""

    def __init__(self, *rejected: int) -> None:
        super().__init__("kept", self.Options())
        self.rejected = rejected
        self.has: list[dict[str, Any]] = []

    async def write(self, batch: Sequence[Record]) -> None:
        values = [record.decode() for record in batch]
        reasons = {index: "no" for index, value in enumerate(values) if value["data"]["number"] in self.rejected}
        if reasons:
            raise SinkReject(reasons)
        self.has += values

    @property
    def numbers(self) -> list[int]:
        return [value["data"]["number"] for value in self.has]


def odd_ones(value: dict[str, Any]) -> dict[str, Any] | None:
    """Leaves even numbers out, fails for 5, and adds a member."""
    number = value["data"]["number"]
    if number == 5:
        raise KeyError("price")
    return {**value, "double": 2 * number} if number % 2 else None


def fed(sink: Sink, transform: Transform) -> SinkConsumer:
    options = SinkOptions(type="kept", start="beginning", batch=BatchOptions(max_wait=Duration(0.0)))
    return SinkConsumer(sink, options, transform=RecordTransform("odd", transform))


@pytest.mark.logs("sink:kept: .*the transform odd failed: KeyError: 'price'|sink:kept: 2 records")
async def test_records_are_changed_left_out_or_given_up(tmp_path: Path) -> None:
    sink = Kept(7)
    async with sqlite_backend(tmp_path) as backend:
        records = make_records(9)
        await append(backend, records)
        consumer = fed(sink, odd_ones)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 9)
            assert (consumer.delivered, consumer.filtered, consumer.given_up) == (3, 4, 2)
            await give_command(backend.store, "kept", Replay(first=1, last=3))
            sink.rejected = ()
            await give_command(backend.store, "kept", Retry(last=2))
            await until(lambda: consumer.progress is not None and consumer.progress.command == 2)
        progress = await PROGRESS.load(backend.store.begin(times.now()), "kept")
        assert progress is not None
        assert (progress.delivered, progress.filtered, progress.given_up) == (3, 4, 2)
        assert (progress.replayed, progress.retried, progress.dead) == (2, 1, 1)
        letters = [each async for each in read_letters(backend.store.begin(times.now()), "kept", 0, 10)]
        assert [each.reason for each in letters] == ["the transform odd failed: KeyError: 'price'"]
        assert [bytes(each.record) for each in letters] == [records[4].body], "a dead letter has the original record"
    assert sink.numbers == [1, 3, 9, 1, 3, 7]
    assert all(value["double"] == 2 * value["data"]["number"] for value in sink.has)


async def test_records_of_which_the_transform_leaves_out_all_are_filtered(tmp_path: Path) -> None:
    sink = Kept()
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(4))
        consumer = fed(sink, lambda value: None)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 4)
    assert (sink.has, consumer.filtered, consumer.delivered) == ([], 4, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: [value], "TypeError: it must return a dict or None, and returned a value of the type list"),
        (lambda value: {**value, "id": "other"}, "ValueError: it must not change the id of a record"),
        (lambda value: {"a": 1}, "ValueError: it must not change the id of a record"),
        (lambda value: {**value, "a": object()}, "TypeError: Encoding objects of type object is unsupported"),
        (lambda value: {**value, "a": "\ud800"}, "UnicodeEncodeError: "),
    ],
)
def test_a_result_that_is_no_record_is_a_failure(change: Any, reason: str) -> None:
    result = asyncio.run(RecordTransform("shop", change).apply(make_records(1)))
    assert result.reasons[0].startswith(f"the transform shop failed: {reason}")


def test_a_transform_lets_other_tasks_run() -> None:
    async def scenario() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def slow(value: dict[str, Any]) -> dict[str, Any]:
            time.sleep(0.001)
            return value

        task = asyncio.create_task(others())
        await RecordTransform("slow", slow).apply(make_records(20))
        task.cancel()
        return turns

    assert asyncio.run(scenario()) >= 19


def test_an_unknown_transform_is_refused_with_the_nearest_name() -> None:
    known: dict[str, Transform] = {"without_email": dict}
    with pytest.raises(
        ConfigError, match=r"x\.transform: there is no transform 'witout_email'; did you mean without_email"
    ):
        make_transform("witout_email", known, "x.transform")
    with pytest.raises(ConfigError, match="there is no transform 'z'; registered: without_email"):
        make_transform("z", known, "x.transform")
    with pytest.raises(ConfigError, match="there is no transform 'z'; no plugin registers one"):
        make_transform("z", {}, "x.transform")
    assert make_transform(None, known, "x.transform") is None


SECRET = "a secret of sixteen and more"


def declared(**table: Any) -> RecordTransform:
    table = {"type": "kept", "transform": table}
    options = read_options(SinkOptions, table, path="sinks.x", source="f", base=Path("/"))
    made = make_transform(options.transform, {}, "f: sinks.x.transform")
    assert made is not None
    return made


def hashed(text: str) -> str:
    return hmac.new(SECRET.encode(), text.encode(), "sha256").hexdigest()


def test_members_are_dropped_then_hashed_then_renamed_as_the_record_has_them() -> None:
    value = {
        "id": "1", "userId": "u", "anonymousId": "v", "anonymousIds": ["v", "w"],
        "data": {"a": 1, "b": 2, "c": {"d": 3}}, "touchpoint": {"anonymousId": "v"},
        "context": {"ip": "1.2.3.4", "traits": {"email": "e"}}, "list": [5, {"x": 6}],
    }  # fmt: skip
    transform = declared(
        drop=["/context/ip", "/none/x"],
        hash=["/traits/email", "/anonymousId"],
        secret=SECRET,
        rename={"/data/a": "b", "/data/b": "a", "/data/c": "e", "/data/c/d": "f", "/userId": "user", "/list/1": "y"},
    )
    found = asyncio.run(transform.apply([Record("event", 0, json.dumps(value).encode(), 1)])).records[0].decode()
    assert found == {
        "id": "1", "user": "u", "anonymousId": hashed("v"), "anonymousIds": [hashed("v"), hashed("w")],
        "data": {"b": 1, "a": 2, "e": {"f": 3}}, "touchpoint": {"anonymousId": hashed("v")},
        "context": {"traits": {"email": hashed("e")}}, "list": [5, {"x": 6}],
    }  # fmt: skip
    assert declared(drop=["/data/a"]) == declared(drop=["/data/a"]) != declared(drop=["/data/b"])


def test_no_other_place_of_an_attribution_or_erasure_tells_what_is_hidden() -> None:
    whole = {
        "anonymousId": "HIDDEN", "sessionId": "HIDDEN", "dispatchId": "HIDDEN",
        "clickId": {"type": "gclid", "id": "HIDDEN"},
    }  # fmt: skip
    value = {
        "id": "1", "anonymousId": "HIDDEN", "userId": "HIDDEN", "anonymousIds": ["HIDDEN", "HIDDEN"],
        "touchpoint": whole, "touchpoints": [whole] * 200 + [{"eventId": "e"}, {"eventId": "f", "sameAs": 0}],
        "ignored": [{"eventId": "g", "anonymousId": "HIDDEN", "reason": "after_order"}],
    }  # fmt: skip
    pointers = ["/anonymousId", "/sessionId", "/dispatchId", "/userId", "/touchpoint/clickId/id"]
    record = Record("attribution", 0, json.dumps(value).encode(), 1)
    for table in ({"drop": pointers}, {"hash": pointers, "secret": SECRET}):
        found = asyncio.run(declared(**table).apply([record])).records[0].decode()
        assert "HIDDEN" not in json.dumps(found)
        assert (found["touchpoints"][201]["sameAs"], found["ignored"][0]["reason"]) == (0, "after_order")


@pytest.mark.parametrize("pointer", ["/data/order_id", "/data/*"])
def test_an_order_has_the_same_hash_in_its_events_and_in_its_attribution(pointer: str) -> None:
    event = {"id": "1", "data": {"order_id": 17, "of": {"x": 1}}}
    attribution = {"id": "2", "orderId": "17", "orderEventId": "1", "x": 1}
    batch = [Record("event", 0, json.dumps(each).encode(), 1) for each in (event, attribution)]
    transform = declared(hash=[pointer], secret=SECRET)
    found, derived = (each.decode() for each in asyncio.run(transform.apply(batch)).records)
    assert found["data"]["order_id"] == derived["orderId"] == hashed("17")
    assert (derived["orderEventId"], derived["x"]) == ("1", 1)
    dropped = asyncio.run(declared(drop=[pointer]).apply(batch)).records[1].decode()
    assert dropped == {"id": "2", "orderEventId": "1", "x": 1}


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"7"])
def test_a_record_that_is_no_object_is_at_fault_itself(body: bytes) -> None:
    found = asyncio.run(declared(drop=["/data/a"]).apply([Record("shop:odd", 0, body, 1), *make_records(1)]))
    assert [*found.reasons] == [0]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"drop": ["/id"]}, "transform.drop[0]: expected another member than the id"),
        (
            {"hash": ["/import/at"], "secret": SECRET},
            "transform.hash[0]: expected another member than the id and the time",
        ),
        ({"drop": ["/*"]}, "transform.drop[0]: expected another member than the id"),
        ({"drop": ["/trait/email"]}, "no record has trait; did you mean /traits/email?"),
        ({"hash": ["/userId"]}, "transform.secret: must be given"),
        ({"hash": ["/userId"], "secret": "hunter2"}, "transform.secret: expected at least 16 characters"),
        ({"rename": {"/data/*": "x"}}, "transform.rename: /data/*: expected one member"),
        ({"rename": {"/userId": "id"}}, "transform.rename: /userId: a record keeps its id"),
        ({"rename": {"/timestamp": "receivedAt"}}, "transform.rename: /timestamp: a record keeps its receivedAt"),
        ({"rename": {"/userId": "import"}}, "transform.rename: /userId: a record keeps its import"),
        ({"drop": ["/erasedAt"]}, "transform.drop[0]: expected another member than the id and the time"),
        ({"rename": {"data": "x"}}, "transform.rename: data: expected a JSON pointer"),
        ({"dorp": []}, "sinks.x.transform.dorp: unknown option; did you mean sinks.x.transform.drop?"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place(table: Any, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        declared(**table)
    assert told in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "envelope"),
    [
        (
            b'{"id":"1","type":"event","tenant":"shop","key":"Page View","anonymousId":"v"}',
            Envelope("1", "shop", "v", "Page View"),
        ),
        (b'{"id":"1","key":null}', Envelope("1")),
        (b'{"id":"1","tenant":"shop","anonymousId":7,"key":[]}', Envelope("1", "shop")),
        (b"[1]", Envelope()),
        (b"{}", Envelope()),
    ],
)
def test_the_envelope_has_the_members_that_are_text(body: bytes, envelope: Envelope) -> None:
    assert Record("event", 0, body).envelope() == envelope
