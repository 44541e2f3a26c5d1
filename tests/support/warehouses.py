"""A shop's records in three warehouses, written by their sinks, with the models of `ingestd models`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.api.sink import Sink
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.plugins.sinks.postgres import PostgresSink

from .attribution import Shop, attributing
from .attribution_reference import Rules
from .chdb_server import ChdbServer
from .journals import read_all
from .postgres_server import PostgresServer

__all__ = [
    "Warehouse",
    "chdb_warehouse",
    "duckdb_warehouse",
    "gift_schema",
    "gifts",
    "long_journey",
    "numbered",
    "postgres_warehouse",
    "story",
]

HOUR, DAY = 3_600_000, 86_400_000
_RULES = Rules(window=7 * DAY, late=DAY, model="last_touch", max_touches=200, max_visitors=4)
_CAMPAIGNS = [
    {"source": "google", "medium": "cpc", "name": "brand"}, {"source": "news", "medium": "email", "name": "autumn"},
    {"source": "bing", "medium": "cpc"}, {"source": "facebook", "medium": "social", "name": "it's new"},
]  # fmt: skip
_CATALOGUE: list[dict[str, Any]] = [
    {"product_id": "p-1", "name": "Kettle", "price": 64.9}, {"product_id": "p-2", "name": "Mug", "price": 12.35},
    {"product_id": "p-3", "name": "Spoon", "price": 0.1, "quantity": 3}, {"product_id": "p-4", "name": "Gift card"},
    {"product_id": "p-5", "name": "Tea", "price": 5.05, "quantity": 1.5},
]  # fmt: skip


def story(visits: int = 100, seed: int = 7) -> list[Record]:
    """Nine weeks of a shop: visits, carts, orders, refunds and sign-ins, and some visits of another shop."""
    chance, shop, records = random.Random(seed), Shop(), []
    orders: list[tuple[str, list[dict[str, Any]], str]] = []
    for visit in range(visits):
        # Many visits on few days, since a lake has a file for each day and type.
        shop.now += chance.randrange(HOUR) if visit % 5 else chance.randrange(6 * DAY)
        visitor = f"visitor-{chance.randrange(visits // 4)}"
        more: dict[str, Any] = {"session": visit, "tenant": "other" if visit % 19 == 3 else "shop"}
        known: dict[str, Any] = more | {"user": chance.choice([None, None, f"user-{visitor[-1]}"])}
        context: dict[str, Any] = {"page": {"url": f"https://shop.example/{visit % 3}"}}
        if chance.random() < 0.6:
            context["campaign"] = chance.choice(_CAMPAIGNS)
        records.append(shop.event("Page View", visitor, context=context, **known))
        if chance.random() < 0.3:
            traits = {
                "plan": chance.choice(["free", "gold", None]),
                f"t{visit % 5}": visit,
                "email": f"{visit}@x.example",
            }
            is_user = chance.random() < 0.5
            records.append(
                shop.identify(
                    visitor, f"user-{visitor[-1]}" if is_user else None, linked=is_user or None, traits=traits, **more
                )
            )
        for _ in range(chance.randrange(3)):
            shop.now += chance.randrange(90_000)
            records.append(shop.event("Product Viewed", visitor, chance.choice(_CATALOGUE), **known))
        products = [dict(chance.choice(_CATALOGUE)) for _ in range(chance.randrange(1, 4))]
        for product in products if chance.random() < 0.7 else ():
            shop.now += chance.randrange(90_000)
            records.append(shop.event("Product Added", visitor, product, **known))
        if chance.random() < 0.5:
            records.append(shop.event("Checkout Started", visitor, {"order_id": f"o-{visit}"}, **known))
            if chance.random() < 0.8:
                shop.now += chance.randrange(HOUR)
                revenue = chance.choice(
                    [40, 12.5, 0.01, 99.99, 0.30000000000000004, 59.970000000000006, 1234567.89, 1e11]
                )
                currency = chance.choice(["EUR", "eur ", "EUR", "CHF"])
                data = {"order_id": f"o-{visit}", "revenue": revenue, "currency": currency, "products": products}
                if chance.random() < 0.1:
                    data = {"order_id": data["order_id"], "total": revenue, "currency": currency}
                copies = range(chance.choice([1, 1, 1, 2]))
                records += [shop.event("Order Completed", visitor, data, **known) for _ in copies]
                if chance.random() < 0.1:
                    records.append(shop.event("Order Completed", visitor, data, signed=True, **known))
                orders.append((f"o-{visit}", products, more["tenant"]))
        if orders and chance.random() < 0.3:
            shop.now += chance.randrange(DAY // 8)
            order_id, bought, tenant = orders.pop(chance.randrange(len(orders)))
            refund: dict[str, Any] = {"order_id": order_id, "refund_id": f"r-{order_id}", "products": bought[:1]}
            more = {"session": 10**6 + visit, "tenant": tenant}
            copies = range(chance.choice([1, 2]))
            records += [shop.event("Order Refunded", "backend", refund, signed=True, **more) for _ in copies]
    return records


def long_journey() -> list[Record]:
    """An order after so many arrivals with so long texts that its record has short forms of most touchpoints."""
    shop, records = Shop(), []
    shop.now += 100 * DAY
    for number in range(150):
        shop.now += 60_000
        kept = {"source": f"s{number % 60}", "medium": "m" * 250, "name": f"n{number % 60}" * 60, "content": "é" * 250}
        records.append(shop.event("Page View", "visitor-long", context={"campaign": kept}, session=number + 10**8))
    records.append(shop.order("visitor-long", "o-long", 1000.01))
    return _behind(records, "5555")


def gift_schema() -> dict[str, Any]:
    """A shop's own key, with members of each kind."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:shop:schema:gift_wrapped",
        "title": "Gift Wrapped",
        "type": "object",
        "allOf": [{"$ref": "#/$defs/card"}],
        "properties": {
            "paper": {"type": ["string", "null"]},
            "price": {"type": "number"},
            "sentAt": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "box": {"type": "object", "properties": {"width": {"type": "integer"}}},
            "item": {"type": "object", "properties": {"id": {"type": "string"}}},
            "item_id": {"enum": ["x", "y", "z"]},
            "tenant": {"type": "string"},
            "choice": {"anyOf": [{"type": "string"}, {"type": "number"}]},
            "ribbons": {"type": "array", "items": {"$ref": "#/$defs/ribbon"}},
        },
        "$defs": {
            "card": {"properties": {"is card": {"type": "boolean"}}},
            "ribbon": {
                "type": "object",
                "properties": {
                    "label": {"type": "string"},
                    "price": {"type": "number"},
                    "quantity": {"type": "number"},
                },
            },
        },
    }


def gifts() -> list[Record]:
    """Its events, also with values that the schema refuses now: it may have been another one."""
    shop = Shop()
    shop.now += 200 * DAY
    names = {*gift_schema()["properties"], "is card"} - {"choice"}
    others: list[Any] = [None, [], [[]], {}, {"width": None}, {"id": {}, "width": []}]
    datas: list[Any] = [
        {"paper": "red", "price": 0.30000000000000004, "is card": True,
         "sentAt": "2026-03-01t00:30:00.2500000000001+02:00",
         "day": "1950-02-28", "box": {"width": 2.5}, "item": {"id": "y"}, "item_id": "x", "tenant": "mine", "choice": 7,
         "ribbons": [{"label": "a", "price": 0.6}, "b", {"label": "c", "price": "1"},
                     {"label": "d", "price": 1e300, "quantity": 1e300}]},
        {},
        *[dict.fromkeys(names, value) for value in others],
        {"paper": 1, "price": "1", "is card": "true", "sentAt": "2026-02-30T00:00:00Z", "day": "2023-02-29"},
        {"sentAt": f"2026-03-01T00:00:00.{'1' * 300}Z"},
        {"sentAt": "2026-03-01", "day": "2026-03-01T00:00:00Z", "price": True, "is card": 0, "box": "width"},
        {"sentAt": "2026-03-01T00:00:00", "day": "0000-01-01", "paper": True, "is card": None, "item": [{"id": "x"}]},
        {"price": 12345678.9, "is card": False, "sentAt": "infinity", "day": "2024-02-29", "choice": "seven"},
    ]  # fmt: skip
    found = [shop.event("Gift Wrapped", "visitor-gifts", data, tenant="gifts", session=10**7) for data in datas]
    return _behind(found, "9999")


def _behind(records: Iterable[Record], digits: str) -> list[Record]:
    """The records with ids behind those of the story."""
    return [
        Record(each.type, each.at, each.body.replace(b"01a1fda8-0000", f"01a1fda8-{digits}".encode()))
        for each in records
    ]


async def numbered(folder: Path, records: Sequence[Record]) -> list[Record]:
    """The records of the journal, with what attribution derives."""
    async with attributing(folder, _RULES) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(200), records[-1].at)
        return [*await read_all(attribution.backend.journal)]


class Warehouse(NamedTuple):
    engine: str
    sink: Sink
    run: Callable[[str], list[list[Any]]]
    """The rows of a query, with all numbers as `Decimal`, and days and times as texts."""
    records: str
    """The table or the folder, as `Dialect` takes it."""


def _plain(row: Iterable[Any]) -> list[Any]:
    """Values that are the same for all engines."""
    found: list[Any] = []
    for value in row:
        if isinstance(value, datetime):
            found.append(value.astimezone(UTC).isoformat(timespec="milliseconds"))
        elif isinstance(value, date):
            found.append(value.isoformat())
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            found.append(Decimal(str(value)))
        elif isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
            found.append(Decimal(value))
        elif isinstance(value, str) and re.fullmatch(r"[0-9-]{10}[T ][0-9:]{8}(\.[0-9]+)?(\+00:00)?", value):
            found += _plain([datetime.fromisoformat(value).replace(tzinfo=UTC)])
        else:
            found.append(value)
    return found


async def _write(sink: Sink, records: Sequence[Record], *, times: int = 2) -> None:
    """Write records as a sink does that is not sure. Later ones of them come again."""
    await sink.open()
    for batch in [records, *repeat(records[len(records) // 2 :], times - 1)]:
        await sink.write(batch)
        await sink.flush(None)
    await sink.close()


async def postgres_warehouse(server: PostgresServer, records: Sequence[Record]) -> Warehouse:
    sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(server.url())))
    await _write(sink, records)

    def run(query: str) -> list[list[Any]]:
        if query.startswith(("CREATE", "DROP")):
            return [server.sql(f"{query};")]
        text = "".join(server.sql(f"SELECT coalesce(json_agg(q), '[]') FROM ({query.rstrip(';')}) AS q;"))
        return [_plain(row.values()) for row in json.loads(text, parse_float=Decimal)]

    return Warehouse("postgres", sink, run, '"ingestd_records"')


async def duckdb_warehouse(folder: Path, records: Sequence[Record]) -> Warehouse:
    sink = ParquetSink("lake", ParquetSink.Options(path=folder))
    await _write(sink, records, times=1)
    _repeat_files(folder)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 1")

    def run(query: str) -> list[list[Any]]:
        return [_plain(row) for row in connection.execute(query).fetchall()]

    return Warehouse("duckdb", sink, run, str(folder))


def _repeat_files(folder: Path) -> None:
    """As after a replay by somebody who has moved files."""
    for file in sorted(folder.rglob("*.parquet"))[::3]:
        (file.parent / f"again-{file.name}").write_bytes(file.read_bytes())


async def chdb_warehouse(server: ChdbServer, records: Sequence[Record]) -> Warehouse:
    sink = ClickHouseSink("warehouse", ClickHouseSink.Options(url=Url(server.url)))
    await _write(sink, records)

    def run(query: str) -> list[list[Any]]:
        if query.startswith(("CREATE", "DROP")):
            return [[server.sql(query)]]
        quoted = "output_format_json_quote_decimals = 1, output_format_json_quote_64bit_integers = 1"
        text = server.sql(f"SELECT * FROM ({query.rstrip(';')}) SETTINGS {quoted} FORMAT JSONCompactEachRow")
        return [_plain(json.loads(line)) for line in text.splitlines()]

    return Warehouse("clickhouse", sink, run, "`default`.`ingestd_records`")
