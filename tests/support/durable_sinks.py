"""Sinks with the extended contract, which record in files what they are given, so that tests see it after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ingestd.api.errors import SinkReject
from ingestd.api.events import Record
from ingestd.api.record_batch import Batch
from ingestd.api.sink import Sink, Span

__all__ = ["FolderSink", "TokenSink", "lake"]


class TokenSink(Sink):
    """A sink with stable batches. Each write is a line of a file: the token and the numbers of the records."""

    stable_batches = True

    def __init__(self, path: Path) -> None:
        super().__init__("token", self.Options())
        self._path = path
        self.failures: list[Exception | None] = []
        """What the next writes raise after they have recorded the batch."""

    async def write(self, batch: Sequence[Record]) -> None:
        assert isinstance(batch, Batch)
        with self._path.open("a") as file:
            file.write(json.dumps([batch.token, [record.decode()["data"]["number"] for record in batch]]) + "\n")
        await asyncio.sleep(0)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def writes(self) -> list[tuple[str, list[int]]]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(token, numbers) for token, numbers in map(json.loads, lines)]


class FolderSink(Sink):
    """A buffering sink. A flush writes a file for each event key, named by the span."""

    buffering = True

    def __init__(self, folder: Path, *, most: int = 1_000_000, flush_after: float = 3600.0) -> None:
        super().__init__("lake", self.Options())
        self.flush_after = flush_after
        self.buffer: list[Record] = []
        self.spans: list[Span | None] = []
        self.rejected: Collection[int] = ()
        """The numbers of records that `write` rejects."""
        self.poison: Collection[int] = ()
        """The numbers of records that make a flush fail."""
        self.failures: list[Exception] = []
        """What the next flushes raise, before they have written anything."""
        self._folder = folder
        self._most = most

    async def open(self) -> None:
        self.buffer = []
        self._folder.mkdir(exist_ok=True)

    async def write(self, batch: Sequence[Record]) -> None:
        reasons = {index: "no" for index, record in enumerate(batch) if number_of(record) in self.rejected}
        if reasons:
            raise SinkReject(reasons)
        self.buffer += batch

    def is_full(self) -> bool:
        return len(self.buffer) >= self._most

    async def flush(self, span: Span | None) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        if any(number_of(record) in self.poison for record in self.buffer):
            raise ValueError("poison")
        self.spans.append(span)
        keys: dict[str, list[Record]] = {}
        for record in self.buffer:
            keys.setdefault(record.envelope().key or "", []).append(record)
        name = f"{span.first}-{span.last}" if span is not None else f"again-{self.buffer[0].position}"
        for key, records in keys.items():
            path = self._folder / f"{key} {name}.jsonl"
            path.write_bytes(b"".join(record.body + b"\n" for record in records))
            await self.wrote_file()
        self.buffer = []

    async def wrote_file(self) -> None:
        """Called after each file of a flush."""

    async def close(self) -> None:
        self.buffer = []


def number_of(record: Record) -> Any:
    return record.decode()["data"]["number"]


def lake(folder: Path) -> list[int]:
    """The numbers of all records in the files of a `FolderSink`, sorted, with repetitions."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["data"]["number"] for line in lines)
