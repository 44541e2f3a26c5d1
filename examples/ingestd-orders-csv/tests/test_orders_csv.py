"""Promises to the bookkeeping: each order once, as it was sent, and never as a formula."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ingestd_orders_csv import LONGEST, Line, OrdersCsvSink

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.events import Record
from ingestd.testing.daemon import running_daemon
from ingestd.testing.sinks import SinkContract, make_records

CONFIG = """
[sinks.bookkeeping]
type = "orders_csv"
folder = "orders"
"""


def make(folder: Path, timezone: str = "UTC") -> OrdersCsvSink:
    return OrdersCsvSink("bookkeeping", OrdersCsvSink.Options(folder=folder / "orders", timezone=timezone))


def order(order_id: str, **data: Any) -> Record:
    return make_records(1, key="Order Completed", data={"order_id": order_id, "currency": "EUR", **data})[0]


def attribution(event: Record, touchpoint: dict[str, str | None] | None) -> Record:
    of = event.decode()
    value = {name: of["data"].get(name) for name in ("revenue", "total", "currency")}
    (record,) = make_records(
        1, type="attribution", orderEventId=of["id"], orderId=of["data"]["order_id"], orderAt=of["timestamp"],
        model="last_touch", value=value, touchpoint=touchpoint,
    )  # fmt: skip
    return Record("attribution", record.at, record.body, record.position)


def lines(folder: Path) -> list[Line]:
    found = []
    for path in sorted((folder / "orders").glob("*.csv")):
        with path.open(encoding="utf-8-sig", newline="") as file:
            found += [*csv.DictReader(file)]
    return found


async def write(folder: Path, *batches: Sequence[Record], timezone: str = "UTC") -> None:
    sink = make(folder, timezone)
    await sink.open()
    try:
        for batch in batches:
            await sink.write(batch)
    finally:
        await sink.close()


class TestContract(SinkContract):
    """The contract for orders: a record becomes its line, and a record without an order becomes nothing."""

    def make_sink(self, folder: Path) -> OrdersCsvSink:
        return make(folder)

    async def read_back(self, folder: Path) -> list[Line]:
        return lines(folder)

    def make_record(self, number: int, text: str) -> Record:
        return order(text[:1000], revenue=number, note=text)

    def make_rejected(self) -> Record:
        return order("o" * (LONGEST + 1))

    def expected(self, record: Record) -> Line | None:
        return make(Path()).line_of(record)


@pytest.mark.parametrize("order_of_writing", [(0, 1), (1, 0), (0, 1, 0, 1)])
def test_an_order_and_its_attribution_make_one_line(tmp_path: Path, order_of_writing: Sequence[int]) -> None:
    event = order("o-1", revenue=40, total=49.9, tax=7.97, shipping=4.9, id="mine", campaign="mine")
    records = [event, attribution(event, {"source": "newsletter", "medium": "email", "name": "autumn"})]
    asyncio.run(write(tmp_path, *([records[index]] for index in order_of_writing)))
    assert lines(tmp_path) == [
        {
            "id": event.decode()["id"], "order_id": "o-1", "time": "2026-11-21T04:05:06+00:00", "currency": "EUR",
            "revenue": "40", "total": "49.9", "tax": "7.97", "shipping": "4.9",
            "model": "last_touch", "source": "newsletter", "medium": "email", "campaign": "autumn",
        }
    ]  # fmt: skip


def test_a_direct_order_has_a_model_and_no_campaign(tmp_path: Path) -> None:
    event = order("o-1", revenue=40)
    asyncio.run(write(tmp_path, [event, attribution(event, None)]))
    (line,) = lines(tmp_path)
    assert (line["model"], line["source"], line["campaign"]) == ("last_touch", "", "")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+49 30 1234", "'+49 30 1234"),
        ("-2", "'-2"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t\r\n =1+1", "'=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ('x",=1+1,"', 'x",\'=1+1,"'),
        ("x;=1+1", "x;'=1+1"),
        ("o-1 = 2; b", "o-1 = 2; b"),
        ("a\nb\x00c", "a b c"),
    ],
)
def test_text_is_never_a_formula(tmp_path: Path, text: str, cell: str) -> None:
    asyncio.run(write(tmp_path, [order(text, revenue=-3)]))
    (line,) = lines(tmp_path)
    assert (line["order_id"], line["revenue"]) == (cell, "-3")


def test_days_go_by_the_time_zone(tmp_path: Path) -> None:
    late = make_records(1, key="Order Completed", data={}, timestamp="2026-11-20T23:30:00.000Z")
    asyncio.run(write(tmp_path, late, timezone="Europe/Berlin"))
    assert [path.name for path in (tmp_path / "orders").iterdir()] == ["orders-2026-11-21.csv"]
    assert lines(tmp_path)[0]["time"] == "2026-11-21T00:30:00+01:00"


def test_an_unknown_time_zone_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sinks\.bookkeeping\.timezone: expected a name .*, got '\.\./Berlin'"):
        make(tmp_path, "../Berlin")


def test_a_corrected_cell_is_kept(tmp_path: Path) -> None:
    event = order("o-1", revenue=40)
    asyncio.run(write(tmp_path, [event]))
    (path,) = (tmp_path / "orders").iterdir()
    path.write_text(path.read_text().replace(",40,", ",39,"))
    asyncio.run(write(tmp_path, [event, attribution(event, None)]))
    assert [(line["revenue"], line["model"]) for line in lines(tmp_path)] == [("39", "last_touch")]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\xff", "\ufeffid,order_id\n"])
def test_a_file_of_another_program_is_not_changed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "orders" / "orders-2026-11-21.csv"
    path.parent.mkdir()
    path.write_text(content, encoding="latin-1" if content == "\xff" else "utf-8")
    before = path.read_bytes()
    with pytest.raises(SinkRetry, match=r"orders-2026-11-21\.csv was changed by another program"):
        asyncio.run(write(tmp_path, [order("o-1")]))
    assert path.read_bytes() == before


def test_a_daemon_keeps_its_orders_and_their_campaigns(tmp_path: Path) -> None:
    with running_daemon(tmp_path, CONFIG) as daemon:
        campaign = {"source": "newsletter", "medium": "email", "name": "=autumn"}
        daemon.track({"key": "Page View", "context": {"campaign": campaign}})
        first = daemon.track({"key": "Order Completed", "data": {"order_id": "o-1", "revenue": 40}})
        daemon.kill()
        daemon.start()
        second = daemon.track({"key": "Order Completed", "data": {"order_id": "o" * 40_000, "revenue": 1}})
        third = daemon.track({"key": "Order Completed", "data": {"order_id": "o-3"}, "anonymousId": "visitor-2"})
        daemon.wait_until_delivered()
        # The order. Its attribution has a short form of the order's id.
        assert daemon.metrics()['ingestd_sink_dead_letters{sink="bookkeeping"}'] == 1
        assert {letter["reason"] for letter in daemon.dead_letters("bookkeeping")} == {
            "a cell is longer than 32767 characters"
        }
    assert {(line["id"], line["order_id"][:3], line["campaign"]) for line in lines(tmp_path)} == {
        (first, "o-1", "'=autumn"),
        (second, "ooo", "'=autumn"),
        (third, "o-3", ""),
    }
