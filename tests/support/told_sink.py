"""A third party's sink that does what a test tells it: it takes records, fails, hangs, is slow or rejects some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .distribution import write_distribution

__all__ = ["Told", "told_installed"]

_SOURCE = '''
    """Appends records to a file, unless another file tells it otherwise. That one is read before each write."""

    import asyncio
    import json
    from pathlib import Path

    from ingestd.api import hookimpl
    from ingestd.api.errors import SinkReject, SinkRetry
    from ingestd.api.options import Options
    from ingestd.api.sink import Sink


    class ToldSink(Sink):
        class Options(Options):
            path: Path
            orders: Path

        def _told(self):
            return json.loads(self.options.orders.read_text()) if self.options.orders.exists() else {}

        async def open(self):
            if "closed" in self._told():
                raise SinkRetry(self._told()["closed"])

        async def write(self, batch):
            told = self._told()
            if "fail" in told:
                raise SinkRetry(told["fail"])
            if "hang" in told:
                await asyncio.Event().wait()
            await asyncio.sleep(told.get("seconds", 0))
            rejected = told.get("reject", {})
            numbers = [record.decode().get("data", {}).get("number") for record in batch]
            reasons = {index: rejected[str(each)] for index, each in enumerate(numbers) if str(each) in rejected}
            if reasons:
                raise SinkReject(reasons)
            with self.options.path.open("ab") as file:
                file.writelines(record.body + b"\\n" for record in batch)


    @hookimpl
    def register_sinks(register):
        register("told", ToldSink)
'''


@contextmanager
def told_installed(folder: Path) -> Iterator[None]:
    """Daemons and commands that are started meanwhile find the sink of type `told`."""
    site = write_distribution(folder, "told-sink", modules={"told_sink": _SOURCE}, plugins={"told": "told_sink"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield


class Told:
    """The sink `[sinks.NAME]` of a shop, to be configured with `options`."""

    def __init__(self, folder: Path, name: str = "crm") -> None:
        self.name = name
        self._path = folder / f"{name}.jsonl"
        self._orders = folder / f"{name}.orders"

    def options(self, *further: str) -> dict[str, str]:
        """Its section for `Shop(tables=…)`, with further lines."""
        lines = [f'type = "told"\npath = "{self._path.name}"\norders = "{self._orders.name}"', *further]
        return {f"sinks.{self.name}": "\n".join(lines)}

    def tell(self, **orders: Any) -> None:
        """What it does from its next write on: `fail="why"`, `hang=True`, `seconds=1.5`, `reject={number: "why"}`.

        `closed="why"` keeps it from being opened.
        """
        whole = self._orders.with_suffix(".new")
        whole.write_text(json.dumps(orders))
        whole.rename(self._orders)

    def records(self) -> list[dict[str, Any]]:
        """What it has taken, whole lines only."""
        if not self._path.exists():
            return []
        *lines, _ = self._path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines]

    def numbers(self) -> list[int]:
        """The `data.number` of the events among them."""
        return [record["data"]["number"] for record in self.records() if record["type"] == "event"]
