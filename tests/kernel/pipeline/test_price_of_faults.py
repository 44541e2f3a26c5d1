"""A batch of faulty events takes at most three times the CPU time of a valid batch of the same size.

The time is CPU time of this process, which other programs of the machine hardly change. The pipeline is the real one,
with few plugins: with more of them, valid events take longer, and faulty ones do not.
"""

from __future__ import annotations

import asyncio
import difflib
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faulty_batches import KINDS, MOST, OWN, SDK, Kind, write_schemas
from ingestd.api import times
from ingestd.api.events import Request
from ingestd.pipeline.outcomes import Answer
from ingestd.plugins.console.live import ArrivalFilter
from ingestd.plugins.segment import SegmentPlugin
from ingestd.validation.validator import Validator
from tests.support.door import Door, open_door
from tests.support.live import live_events

MARGIN = 0.006
"""Seconds that any batch may take: a thousand refusals take them, however few bytes ask for them."""
ATTEMPTS = 6

LARGEST = 400 * 1024
"""Bytes of an answer in which no event is told anything but its status. 64 KiB of problem documents are in it."""


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    write_schemas(tmp_path / "schemas")
    plugin = SegmentPlugin(SegmentPlugin.Options())
    async with open_door(tmp_path, plugin, server="fast", schemas=tmp_path / "schemas") as door:
        yield door


async def answer(door: Door, path: str, body: bytes) -> tuple[Answer, float]:
    """The answer to a batch, and the CPU time in seconds."""
    settings, given = door.ingest.settings, asyncio.get_running_loop().create_future()
    operation = settings.routes.find(path)
    assert operation is not None
    request = Request(
        operation.endpoint, {"Authorization": "Bearer shop"}, body,
        received_at=times.now(), batch=operation.batch, intake=operation.intake, route=operation.route,
    )  # fmt: skip
    begun = time.process_time()
    await settings.pipeline.handle(request, given.set_result)
    made: Answer = await given
    return made, time.process_time() - begun


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which the daemon runs rarely."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def excess(door: Door, kind: Kind) -> float:
    """How much longer than it may a faulty batch takes, in seconds. Less than zero: it is fast enough."""
    faulty, valid = kind.faulty("shop"), kind.valid("shop")
    assert len(valid) == pytest.approx(len(faulty), rel=0.1)
    found: list[float] = []
    while len(found) < ATTEMPTS and (not found or min(found) > 0):
        with uncollected():
            made, taken = await answer(door, kind.path, faulty)
            refused, usual = await answer(door, kind.path, valid)
        assert refused.status == 200
        assert made.status in (200, 400)
        assert len(made.body) < LARGEST
        assert b'"code"' not in refused.body
        found.append(taken - MOST * usual - MARGIN)
    return min(found)


@pytest.mark.logs("unusable ids")
async def test_a_faulty_batch_takes_at_most_three_times_a_valid_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        found = {kind.name: await excess(door, kind) for kind in KINDS}
        assert {name: seconds for name, seconds in found.items() if seconds > 0} == {}
        with live_events(Validator.load(None), outcomes=door.ingest.settings.pipeline.outcomes).view(ArrivalFilter()):
            assert await excess(door, KINDS[0]) <= 0


def results(made: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(made.body)["results"]
    return found


async def test_the_first_faults_of_a_batch_are_explained_whole_and_each_event_has_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        kind = next(kind for kind in KINDS if kind.name == "50 faults")
        made, _ = await answer(door, OWN, kind.faulty("shop"))
        told = [len(each.get("errors", ())) for each in results(made)]
        assert told[0] == 50
        assert set(told[20:60]) == {1}
        assert {(each["status"], each["code"], each["success"]) for each in results(made)} == {
            (400, "invalid_data", False)
        }
        assert results(made)[-1] == {"status": 400, "success": False, "code": "invalid_data"}
        assert len(told) == 1000


async def test_an_sdk_is_told_all_its_rejected_messages(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        kind = next(kind for kind in KINDS if kind.name == "50 faults, by an SDK")
        made, _ = await answer(door, SDK, kind.faulty("shop"))
        rejected = json.loads(made.body)["rejected"]
        assert [each["index"] for each in rejected] == [*range(2500)]
        assert len(rejected[0]["pointers"]) == 50
        assert rejected[-1] == {"index": 2499, "code": "invalid_data"}


async def test_few_names_of_a_request_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as door:
        searches = []
        search = difflib.get_close_matches

        def count(name: str, *rest: Any, **more: Any) -> Any:
            searches.append(name)
            return search(name, *rest, **more)

        monkeypatch.setattr(difflib, "get_close_matches", count)
        events = [{"key": f"Page View{number}", "anonymousId": "a", "data": {}} for number in range(200)]
        made, _ = await answer(door, OWN, json.dumps({"events": events}).encode())
        assert 0 < len(searches) < 10
        assert 'did you mean "Page View"?' in results(made)[0]["detail"]
        made, _ = await answer(door, OWN, json.dumps({"events": [events[0]] * 200}).encode())
        assert len(searches) < 10, "a name is looked for once"
        assert 'did you mean "Page View"?' in results(made)[100]["detail"]
