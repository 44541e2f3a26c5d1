"""A consumer works after the answer, in atomic steps. Events wait during a step: every 0.2 ms, await `step.give_way()`.

`for_partition` is called on a store with several partitions, after `startup`. Without it the start on such a store ends
with exit code 78.
"""

import json
from collections.abc import Callable, Sequence

from ingestd.api import hookimpl
from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record


class Refunds(Consumer):
    """A record of type `refund` for every refunded order."""

    name = "shop_tools:refunds"

    async def process(self, records: Sequence[Record], step: Step) -> None:
        for record in records:
            value = record.decode()
            if value.get("key") == "Order Refunded":
                refund = {"id": f"refund-{value['id']}", "type": "refund", "orderId": value["data"].get("order_id")}
                step.append(Record("refund", record.at, json.dumps(refund).encode()))

    def for_partition(self, name: str) -> Consumer:
        return Refunds()


@hookimpl
def register_consumers(register: Callable[[Consumer], None]) -> None:
    register(Refunds())
