"""A consumer for tests: what it has derived tells whether each event was processed exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from tests.support.senders import NOW

__all__ = ["Deriver"]


class Deriver(Consumer):
    """Derives a record from each event, and counts them."""

    name = "deriver"
    max_records = 20
    key = "derived:count"

    async def process(self, records: Sequence[Record], step: Step) -> None:
        for record in records:
            if record.type == "event":
                count = int(await step.state.get(self.key) or "0") + 1
                await step.state.put(self.key, f"{count}")
                step.append(Record("derived", NOW, record.body))
