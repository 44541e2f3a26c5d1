"""A third-party sink that a test controls: it takes records, fails, hangs, is slow or rejects some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .distribution import write_distribution

__all__ = ["SOURCE", "Told", "write_told_sink"]

SOURCE = '''
    """Appends records to a file, unless the file `orders` says otherwise. It is read before each write."""

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


def write_told_sink(folder: Path) -> Path:
    """Processes with this folder in PYTHONPATH find the sink type `told`."""
    return write_distribution(folder, "told-sink", modules={"told_sink": SOURCE}, plugins={"told": "told_sink"})


class Told:
    """The sink `[sinks.NAME]` of a shop. `options` are the options for its configuration."""

    def __init__(self, folder: Path, name: str = "crm") -> None:
        self.name = name
        self._path = folder / f"{name}.jsonl"
        self._orders = folder / f"{name}.orders"

    def options(self, *further: str) -> dict[str, str]:
        """The sink's section for `Shop(tables=…)`, with additional lines."""
        lines = [f'type = "told"\npath = "{self._path.name}"\norders = "{self._orders.name}"', *further]
        return {f"sinks.{self.name}": "\n".join(lines)}

    def tell(self, **orders: Any) -> None:
        """Controls the sink from its next write: `fail="why"`, `hang=True`, `seconds=1.5`, `reject={number: "why"}`.

        `closed="why"` makes opening the sink fail.
        """
        whole = self._orders.with_suffix(".new")
        whole.write_text(json.dumps(orders))
        whole.rename(self._orders)

    def records(self) -> list[dict[str, Any]]:
        """The records that the sink has written, without an unfinished line."""
        if not self._path.exists():
            return []
        *lines, _ = self._path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines]

    def numbers(self) -> list[int]:
        """The `data.number` of the written events."""
        return [record["data"]["number"] for record in self.records() if record["type"] == "event"]
