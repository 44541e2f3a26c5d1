"""New schemas are tried on whatever the journal holds, within bounds of time and memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingestd.api.events import Record
from ingestd.plugins.tools.contracts.trial import try_schemas, warnings
from ingestd.validation.schema_files import DRAFT
from ingestd.validation.validator import Validator
from tests.support.backends import sqlite_backend
from tests.support.journals import append
from tests.support.passing_journal import PassingJournal

HEAD = {"$schema": DRAFT, "$id": "urn:s:gift", "title": "Gift", "description": "d", "type": "object"}


def validator(folder: Path, **members: Any) -> Validator:
    (folder / "gift.json").write_text(json.dumps({**HEAD, **members}))
    return Validator.load(folder)


def event(number: int, data: Any, **members: Any) -> Record:
    value = {"id": str(number), "type": "event", "endpoint": "track", "key": "Gift", "data": data, **members}
    return Record("event", number, json.dumps(value).encode())


async def test_only_events_that_a_schema_would_meet_are_tried(tmp_path: Path) -> None:
    strict = validator(tmp_path, required=["cost"], properties={"cost": {"type": "number"}})
    met = strict.schema_ids["Gift"]
    records = [
        event(1, {"cost": "5"}),
        event(2, {"cost": "5"}, endpoint="segment"),  # its intake reads texts as numbers
        event(3, {}, erased=True),
        event(4, {}, schema=met),  # a plugin has removed a member since
        event(5, {}, key="Unknown", endpoint="segment"),  # an intake took it without a schema
        event(6, {}, key="Unknown", endpoint="segment", schema="0" * 12),  # a key that was removed
        event(7, [1]),
        Record("event", 8, b"[1]"),
        Record("event", 9, b'{"key": 7, "data": {'),
        Record("shop:receipt", 10, b"{}"),
    ]
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records)
        partitions = backend.partitions
        trial = await try_schemas(strict, partitions, 0)
        assert trial.events == {"Gift": 4, "Unknown": 1}
        assert {(each.key, each.pointer, count) for each, count in trial.refusals.items()} == {
            ("Gift", "/data/cost", 1), ("Gift", "/data", 1), ("Unknown", "/key", 1),
        }  # fmt: skip
        assert (await try_schemas(strict, partitions, 6)).events == {"Gift": 1, "Unknown": 1}


async def test_names_and_time_are_bounded(tmp_path: Path) -> None:
    closed = validator(tmp_path, properties={}, additionalProperties=False)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, [event(1, {}, key="Gone")])
        await append(backend, [event(1, {f"n{part}x{number}": 1 for part in range(40)}) for number in range(60)])
        partitions = backend.partitions
        trial = await try_schemas(closed, partitions, 0)
        assert (trial.refused["Gift"], len(trial.of("Gift")), trial.is_whole) == (60, 1_000, True)
        assert len(trial.of("Gone")) == 1, "the names of one key hide no fault of another"
        short = await try_schemas(closed, partitions, 0, seconds=0)
        assert (short.events["Gift"], short.is_whole) == (1, False)
        assert await warnings(closed, partitions, 1) == [], "events of 1970 are older than a week"


async def test_no_refusal_names_a_person(tmp_path: Path) -> None:
    closed = validator(tmp_path, properties={"by": {"additionalProperties": {"type": "number"}}})
    people = [f"ann{each}@shop.example" for each in range(3)] + ["+49301234567", "0f3d2c1a-aaaa-4bbb-8ccc-0123456789ab"]
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, [event(1, {"by": {each: "HIDDEN"}}) for each in people])
        trial = await try_schemas(closed, backend.partitions, 0)
    (refusal,) = trial.refusals
    assert (refusal.pointer, trial.refusals[refusal]) == ("/data/by/*", 5)
    assert "HIDDEN" not in refusal.message


class _Trimmed(PassingJournal):
    """Retention removes most records behind the first read."""

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        found = await super().read(after, limit)
        await self._journal.trim(450, 1000)
        return found


async def test_events_that_retention_removes_meanwhile_are_tried_once_or_not_at_all(tmp_path: Path) -> None:
    closed = validator(tmp_path, properties={}, additionalProperties=False)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, [event(number, {"a": 1}) for number in range(1, 601)])
        (partition,) = backend.partitions
        trial = await try_schemas(closed, [partition._replace(journal=_Trimmed(partition.journal))], 0)
    assert (trial.events["Gift"], trial.refused["Gift"]) == (200, 200)
