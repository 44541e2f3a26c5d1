"""The kafka sink with Apicurio Registry, which has the same API as Confluent's registry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from jsonschema.validators import Draft202012Validator

from ingestd.testing.sinks import make_records
from ingestd.validation.schema_files import complete_schemas
from tests.support.apicurio import Apicurio, apicurio
from tests.support.kafka_sink import Kafka, make, until_written

pytestmark = pytest.mark.long

ORDER = {"order_id": "o-1", "total": 49.9, "products": [{"price": 1}]}


async def test_a_real_registry_gives_the_same_ids_to_two_daemons_and_new_ones_to_changed_schemas(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    batch = [*make_records(2, key="Order Completed", data=ORDER), *make_records(1, key="Page View")]
    with apicurio(tmp_path) as registry:
        sinks = [make(kafka.cluster.addresses, topic, schema_registry=registry.url) for _ in range(2)]
        for sink in sinks:
            sink.schemas = complete_schemas(None)
            await sink.check()
            await sink.open()
        await asyncio.gather(*(until_written(sink, batch) for sink in sinks))  # a race of both is answered 409
        order, page = f"{topic}-Order Completed", f"{topic}-Page View"
        assert {*registry.get("/subjects")} == {order, page}
        ids = {message.headers["key"]: message.headers["schema-id"] for message in kafka.cluster.messages(topic)}
        assert len({(each.headers["key"], each.headers["schema-id"]) for each in kafka.cluster.messages(topic)}) == 2
        stored = Draft202012Validator(schema_of(registry, ids["Order Completed"]))
        assert stored.is_valid(batch[0].decode())
        assert not stored.is_valid({**batch[0].decode(), "data": {"products": [{"price": "1"}]}})

        changed = {**complete_schemas(None)}
        changed["Page View"] = {**changed["Page View"], "required": ["a"]}
        sinks.append(make(kafka.cluster.addresses, topic, schema_registry=registry.url))  # as a reload does
        sinks[2].schemas = changed
        await sinks[2].open()
        await sinks[2].write(make_records(1, key="Page View", data={"a": 1}))
        newest = kafka.cluster.messages(topic)[-1].headers["schema-id"]
        assert newest != ids["Page View"]
        assert schema_of(registry, newest) != schema_of(registry, ids["Page View"])
        for sink in sinks:
            await sink.close()


def schema_of(registry: Apicurio, id_: str) -> dict[str, object]:
    schema: dict[str, object] = json.loads(registry.get(f"/schemas/ids/{id_}")["schema"])
    return schema
