"""A back end with several partitions, each of them an SQLite file: `[store] url = "files:3:shop.db"`.

The plugin is installed as a copy of this module, so it imports only what plugins import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ingestd.api import hookimpl
from ingestd.api.backend import Backend, DaemonProcess, Partition
from ingestd.api.check_result import CheckResult, fault
from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.hookspecs import BackendFactory
from ingestd.api.journal import Append, Journal
from ingestd.api.store import State, Store
from ingestd.plugins.stores.sqlite import SqliteBackend

__all__ = ["PartitionedBackend", "away_file", "part_file"]


def part_file(path: Path, index: int) -> Path:
    """The file of a partition. `path` is the file in the URL."""
    return path.with_name(f"{path.stem}-{index}{path.suffix}")


def away_file(path: Path, index: int) -> Path:
    """A partition is out of reach for every process that makes the back end while this file exists."""
    return part_file(path, index).with_suffix(".away")


class PartitionedBackend(Backend):
    """The name of a partition is its index. Other files can be out of reach: then only theirs are `Unavailable`."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._parts = [SqliteBackend(part_file(path, index), cache=10_000, busy_timeout=1.0) for index in range(count)]
        self._away = {index for index in range(count) if away_file(path, index).exists()}
        self._partitions = [self._partition(index, part) for index, part in enumerate(self._parts)]

    def _partition(self, index: int, part: SqliteBackend) -> Partition:
        if index not in self._away:
            return Partition(f"{index}", part.store, part.journal, part.problem, part.contents)
        reason = f"partition {index} is away"
        return Partition(f"{index}", *_away(reason), partial(str, reason))

    @property
    def partitions(self) -> Sequence[Partition]:
        return self._partitions

    async def open(self, *, serving: bool) -> None:
        async with AsyncExitStack() as stack:
            for part in self._there():
                await part.open(serving=serving)
                stack.push_async_callback(part.close)
            stack.pop_all()

    async def close(self) -> None:
        for part in self._there():
            await part.close()

    def problem(self) -> str | None:
        return next((problem for each in self._partitions if (problem := each.problem()) is not None), None)

    async def describe(self) -> Sequence[CheckResult]:
        away = [fault(f"{index}", Unavailable(f"partition {index} is away")) for index in sorted(self._away)]
        return [*away, *[finding for part in self._there() for finding in await part.describe()]]

    async def daemons(self) -> Sequence[DaemonProcess]:
        return [daemon for part in self._there() for daemon in await part.daemons()][:1]

    def _there(self) -> list[SqliteBackend]:
        return [part for index, part in enumerate(self._parts) if index not in self._away]


def _away(reason: str) -> tuple[Store, Journal]:
    """A store and a journal that cannot be reached."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise Unavailable(reason)

    async def append(_: Journal, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        then([Unavailable(reason) for _ in appends])

    def make(base: type[Any], **further: object) -> Any:
        methods = dict.fromkeys(base.__abstractmethods__, fail)
        return type(f"Away{base.__name__}", (base,), {**methods, **further})()

    def begin(_: Store, now: int, *, event: bool = False, step: bool = False) -> State:
        state: State = make(State, on_commit=lambda *_: None, now=now)
        return state

    store = make(Store, begin=begin, discard=lambda *_: None, look_for_loss=fail, clear_loss=fail, report_loss=fail)
    return store, make(Journal, append=append)


class FilesPlugin:
    @hookimpl
    def register_stores(self, register: Callable[[str, BackendFactory], None]) -> None:
        register("files", _make)


def _make(url: str, base: Path) -> PartitionedBackend:
    match = re.fullmatch(r"files:(\d+):(.+)", url)
    if match is None:
        raise ConfigError(f"{url!r}: expected files:COUNT:FILE")
    return PartitionedBackend((base / match[2]).resolve(), int(match[1]))
