"""State of a consumer's step: it is read and changed in memory, and written with the step's records in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ingestd.api.errors import Unavailable

from ..cache import Change, Entries, Entry, Loaded, Row, SetEntry, is_set, key_of
from ..cached_state import CachedState
from ..fields import Fields
from .link import Link
from .state import field_of, pairs

__all__ = ["StepState"]

_TOGETHER = 16  # entries of one read; events are served between two reads
_LIMIT = 1_000_000  # entries of one step; they are dropped with it


class StepState(CachedState):
    """Only the holder of the cursor writes this state, so no other daemon changes it during the step."""

    def __init__(self, link: Link, now: int) -> None:
        self._link = link
        self._store_id = link.store_id
        super().__init__(Entries(_LIMIT, _Loader(link, now).load), now)

    def rows(self) -> list[list[Any]]:
        """The changes, as batch.lua takes them. Raises `Unavailable` if the store has lost data meanwhile."""
        if self._link.store_id != self._store_id:
            raise Unavailable("The store has lost data since the step began.")
        found: list[list[Any]] = []
        for entry in self.written:
            if not entry.dirty:
                continue
            key = entry.key
            entry.dirty = False
            if isinstance(entry, SetEntry):
                changes, entry.changes = entry.changes, {}
                there = [(member, at) for member, (_, at, _) in changes.items() if at is not None]
                gone = [member for member, (_, at, _) in changes.items() if at is None]
                found.append(["members", key_of(key), there, gone, entry.expires])
            else:
                found.append(_written(key, entry))
        return found


class _Loader:
    """Loads the entries of one step. It does not refer to the step's state.

    In a cycle of references, each finished step would keep megabytes until the garbage collector runs. The collector
    counts objects, not bytes, so that takes minutes.
    """

    def __init__(self, link: Link, now: int) -> None:
        self._link = link
        self._now = now
        self._loading: asyncio.Task[list[Row]] | None = None

    def load(self, keys: Sequence[str], loaded: Loaded) -> None:
        def end(loading: asyncio.Task[list[Row]]) -> None:
            self._loading = None
            if not loading.cancelled():  # when cancelled, no caller is left
                loaded(loading.exception() or loading.result())

        self._loading = asyncio.get_running_loop().create_task(self._read(keys))
        self._loading.add_done_callback(end)

    async def _read(self, keys: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        for first in range(0, len(keys), _TOGETHER):
            some = keys[first : first + _TOGETHER]
            asked = [self._ask(key) for key in some]
            found = [_row(key, await answer) for key, answer in zip(some, asked, strict=True)]
            rows += [row for row in found if row is not None]
        return rows

    def _ask(self, key: str) -> asyncio.Future[Any]:
        if is_set(key):
            return self._link.queue("set", self._now, key_of(key))
        return self._link.queue("entry", self._now, key)


def _written(key: str, entry: Entry) -> list[Any]:
    if entry.value is not None:
        return ["value", key, entry.value, entry.expires]
    if not entry.fields:
        return ["gone", key]
    changes = entry.fields.take_changes().fields
    there = [(name, field.at, field.value) for name, field in changes.items() if field is not None]
    gone = [name for name, field in changes.items() if field is None]
    return ["fields", key, there, gone]


def _row(key: str, answer: list[Any]) -> Row | None:
    if not answer:
        return None
    if is_set(key):
        members: dict[str, int] = {member: int(float(at)) for member, at in pairs(answer)}
        ends = members.pop("", None)
        expires = None if ends is None else -ends
        there: dict[str, Change] = {member: (0, at, expires) for member, at in members.items()}
        return (key, None, there, None)
    if len(answer) == 1:
        ends_at, _, value = answer[0].partition("|")
        return (key, value, None, int(ends_at) if ends_at else None)
    fields = {name: field_of(raw) for name, raw in pairs(answer[1])}
    return (key, None, Fields(fields, durable=True), None)
