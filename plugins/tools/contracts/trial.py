"""Tries schemas on events of the journal, so that a breaking change is known before callers are refused.

`ingestd schemas check` prints all of it. `ingestd check` and a reload warn of what is new.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import BadRequest, CommandError, UnknownKey
from ingestd.api.events import Endpoint, Record
from ingestd.api.imported import is_completed
from ingestd.api.journal import Journal
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.json_text import decode_json
from ingestd.support.masking import mask_name
from ingestd.support.pace import Pace
from ingestd.support.record_head import read_head
from ingestd.support.terminal import printable, table
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.validator import Validator

from ..journal_reading import records_of
from ..sinks.partitions import in_each

__all__ = ["Refusal", "Trial", "check_schemas", "try_schemas", "warnings"]

_PAGE = 200
_SLICE = 0.002  # seconds of work after which other tasks get a turn
_MOST_REFUSALS = 1_000  # kinds of a key: a caller may choose names, and so pointers
_SHOWN = 3
_WEEK = 7 * 86_400_000


class Refusal(NamedTuple):
    """A fault that events of a key have by these schemas."""

    key: str
    pointer: str
    """A JSON pointer into the body, with `*` for the index of any element, and for a name that is an address or id."""
    message: str


class Trial:
    """What became of the events. An event may have several faults."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """The events that were tried, by key."""
        self.refused: Counter[str] = Counter()
        """Those that these schemas refuse."""
        self.refusals: Counter[Refusal] = Counter()
        """The refused events with each fault. Beyond a thousand faults of a key, further ones are not counted."""
        self._kinds: Counter[str] = Counter()
        self.is_whole = True
        """Whether all events of the time were tried."""
        self.current: set[str] = set()
        """Keys whose newest event has met these very schemas, so that they are in force already."""

    def add(self, key: str, faults: Sequence[tuple[str, str]]) -> None:
        self.events[key] += 1
        if faults:
            self.refused[key] += 1
            for fault in dict.fromkeys((_masked(pointer), message) for pointer, message in faults):
                refusal = Refusal(key, *fault)
                if refusal in self.refusals or self._kinds[key] < _MOST_REFUSALS:
                    self._kinds[key] += refusal not in self.refusals
                    self.refusals[refusal] += 1

    def of(self, key: str) -> list[tuple[Refusal, int]]:
        """The faults of a key, the most frequent first."""
        return [each for each in self.refusals.most_common() if each[0].key == key]


def _masked(pointer: str) -> str:
    root, *names = pointer.split("/")
    return "/".join([root, *map(mask_name, names)])


async def try_schemas(
    validator: Validator, partitions: Sequence[Partition], since: int, *, seconds: float | None = None
) -> Trial:
    """Try the events received since then, the newest first. With `seconds`, as many as that time allows.

    Events of an intake that had no schema are left out, and so are events of forgotten persons. Raises `Unavailable`.
    """
    trial, pace = Trial(), Pace(_SLICE)
    for number, partition in enumerate(partitions):
        # What one partition leaves of the time is for the others.
        until = None if seconds is None else monotonic() + seconds / (len(partitions) - number)
        began = monotonic()
        async for record in _newest_first(partition.journal, since):
            await pace.give_way()
            _try(record, validator, trial)
            if until is not None and monotonic() > until:
                trial.is_whole = False
                break
        if seconds is not None:
            seconds = max(0.0, seconds - (monotonic() - began))
    return trial


async def _newest_first(journal: Journal, since: int) -> AsyncIterator[Record]:
    extent = await journal.extent()
    last = extent.last
    while last >= extent.first:
        before = max(extent.first, last - _PAGE + 1) - 1
        page = [record async for record in records_of(journal, before, last)]
        for record in reversed(page):
            if record.at < since:
                return
            yield record
        if not page:
            return  # the older ones are gone too
        last = before


def _try(record: Record, validator: Validator, trial: Trial) -> None:
    if record.type != "event" or is_completed(record.body):
        return
    try:
        head = read_head(record.body)
        data = decode_json(head.data) if head.data else {}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # a plugin wrote it
        return
    key, is_ours = head.key, head.endpoint in _ENDPOINTS
    if head.erased or key is None or (key not in validator.keys and head.schema is None and not is_ours):
        return
    if key not in trial.events and head.schema is not None and head.schema == validator.schema_ids.get(key):
        trial.current.add(key)
    trial.add(key, _faults(key, data, validator, texts=not is_ours, met=head.schema))


_ENDPOINTS = frozenset(endpoint.value for endpoint in Endpoint.BUILT_IN)


def _faults(key: str, data: Any, validator: Validator, *, texts: bool, met: str | None) -> Sequence[tuple[str, str]]:
    if met is not None and met == validator.schema_ids.get(key):  # plugins may have changed the members since
        return ()
    body = {"key": key, "data": data, "anonymousId": "visitor"}
    try:
        if texts:
            validator.event_with_texts(body, FaultBudget())
        else:
            validator.event(body, FaultBudget())
    except UnknownKey:
        return [("/key", "there is no such event key")]
    except BadRequest as error:
        return error.errors or [("", error.detail)]
    return ()


async def warnings(validator: Validator, partitions: Sequence[Partition], seconds: float) -> list[CheckResult]:
    """A warning for each key of which these schemas refuse events of the last week, if they are new to that key."""
    trial = await try_schemas(validator, partitions, times.now() - _WEEK, seconds=seconds)
    return [_warning(key, trial) for key in trial.refused if key not in trial.current]


def _warning(key: str, trial: Trial) -> CheckResult:
    found = trial.of(key)
    told = ", ".join(f"{each.pointer}: {each.message} ({count})" for each, count in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    text = f"would refuse {trial.refused[key]} of the last {trial.events[key]} events: {told}{more}"
    return CheckResult(key, text, "warning", {"events": trial.events[key], "refused": trial.refused[key]})


async def check_schemas(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Raises `CommandError` if the schemas refuse an event, so that the exit code is 1."""
    validator = Validator.load(config.schemas.directory)
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        await in_each(backends.partitions, missing, lambda each: each.journal.extent())
        there = [each for each in backends.partitions if each.name not in missing.reasons]
        trial = await try_schemas(validator, there, arguments.against)
    write_result(_facts(trial), lines=_lines(trial), as_json=arguments.json)
    missing.check("their events were not tried")
    refused = trial.refused.total()
    if refused:
        raise CommandError(f"the schemas refuse {refused} of {trial.events.total()} events")


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "events": trial.events.total(),
        "refused": trial.refused.total(),
        "keys": [
            {
                "key": key,
                "events": trial.events[key],
                "refused": count,
                "faults": [
                    {"pointer": each.pointer, "message": each.message, "events": events}
                    for each, events in trial.of(key)
                ],
            }
            for key, count in trial.refused.most_common()
        ],
    }


def _lines(trial: Trial) -> Iterator[str]:
    rows = [("KEY", "POINTER", "EVENTS", "REASON")]
    for key, count in trial.refused.most_common():
        rows.append((printable(key), "", f"{count} of {trial.events[key]}", "would be refused"))
        rows += [("", printable(each.pointer), str(events), printable(each.message)) for each, events in trial.of(key)]
    if len(rows) > 1:
        yield from table(rows)
    else:
        yield f"the schemas take all {trial.events.total()} events"
