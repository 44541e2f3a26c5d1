"""`ingestd sinks verify`: what a lake has, compared with what the journal says it should have."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ingestd.api import times
from tests.support.clickhouse_server import clickhouse_server
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.postgres_server import postgres_server

LAKE = """type = "parquet"
path = "lake"
flush_every = "50ms"
filter = { types = ["event", "identify"] }
"""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, {"sinks.lake": LAKE})


def send(shop: Shop, daemon: Daemon, visitor: str, count: int) -> None:
    batch = [
        {"key": "Order Completed", "anonymousId": visitor, "data": {"order_id": f"{visitor}{each}"}}
        for each in range(count)
    ]
    assert daemon.post("/batch", {"events": batch}, shop.public.id).status == 200
    wait_until(lambda: shop.is_done("sink:lake", "attribution"))


def verified(shop: Shop, sink: str = "lake", *, code: int) -> dict[str, Any]:
    done = run_ingestd("sinks", "verify", sink, "--since", "2d", "--json", config=shop.config)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def files(shop: Shop) -> list[Path]:
    return sorted((shop.config.parent / "lake").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def test_only_what_is_due_is_missing_and_only_strange_rows_are_too_many(shop: Shop) -> None:
    with shop.serve() as daemon:
        send(shop, daemon, "a", 5)
        wait_until(lambda: verified(shop, code=0)["expected"] == 5)
    run_ingestd("sinks", "pause", "lake", config=shop.config)
    with shop.serve() as daemon:
        late = {"events": [{"key": "Page View", "anonymousId": "late", "data": {}}]}
        assert daemon.post("/batch", late, shop.public.id).status == 200
        found = verified(shop, code=0)
        assert (found["expected"], found["missing"], found["tooMany"]) == (5, 0, 0), "one after the cursor is not due"
        run_ingestd("sinks", "resume", "lake", config=shop.config)
        wait_until(lambda: verified(shop, code=0)["expected"] == 6)
        _lose_and_repair(shop)


def _lose_and_repair(shop: Shop) -> None:
    first = files(shop)[0]
    whole = pq.read_table(first, partitioning=None)
    pq.write_table(whole.slice(2), first)
    found = verified(shop, code=1)
    assert (found["missing"], found["tooMany"]) == (2, 0)
    lost = whole["id"].to_pylist()[:2]
    assert {each["id"] for each in found["missingIds"]} == {*lost}
    places = [each["position"] for each in found["missingIds"]]
    for place in places:
        run_ingestd("sinks", "replay", "lake", "--from", place, "--to", place, config=shop.config)
    assert verified(shop, code=0)["missing"] == 0

    strange = whole.slice(0, 1).to_pydict()
    strange["id"] = ["00000000-0000-7000-8000-000000000000"]
    pq.write_table(type(whole).from_pydict(strange, schema=whole.schema), first.with_name("strange.parquet"))
    pq.write_table(whole.slice(4), first.with_name("twice.parquet"))
    found = verified(shop, code=1)
    assert (found["missing"], found["tooMany"]) == (0, 2)
    assert {*found["tooManyIds"]} == {*strange["id"], whole["id"].to_pylist()[4]}
    page = run_ingestd("sinks", "verify", "lake", "--since", "1d", config=shop.config)
    assert "too many: 00000000-0000-7000-8000-000000000000" in page.stdout
    assert page.stderr.endswith("the sink lake differs from the journal\n")


def has_rows(shop: Shop, rows: int) -> bool:
    return rows == sum(int(pq.read_table(each, partitioning=None).num_rows) for each in files(shop))


def test_a_record_that_an_import_has_stored_twice_is_due_once(shop: Shop, tmp_path: Path) -> None:
    at = times.format_time(times.now() - 60_000)
    names = [f"m{each}" for each in range(3)]
    lines = [
        json.dumps({"type": "track", "event": "Page View", "messageId": each, "anonymousId": "v", "timestamp": at})
        for each in names
    ]
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(lines))
    with shop.serve():
        for count, flags in enumerate(([], ["--state"]), start=1):
            done = run_ingestd("events", "import", str(file), "--tenant", "shop", *flags, config=shop.config)
            assert done.returncode == 0, done.stdout + done.stderr
            wait_until(partial(has_rows, shop, 3 * count))
        wait_until(lambda: verified(shop, code=0)["expected"] == 3)
        files(shop)[0].unlink()  # as a table that keeps one row for each id
        found = verified(shop, code=0)
        assert (found["expected"], found["missing"], found["tooMany"]) == (3, 0, 0)
        counted = run_ingestd("schemas", "catalogue", "--json", config=shop.config)
        assert json.loads(counted.stdout)["events"] == 3


def test_of_more_than_ten_thousand_missing_ids_the_first_are_told_and_all_are_counted(shop: Shop) -> None:
    with shop.serve() as daemon:
        for part in range(11):
            send(shop, daemon, f"v{part}-", 1000)
        wait_until(lambda: verified(shop, code=0)["expected"] == 11_000)
        first, *others = files(shop)
        pq.write_table(pq.read_table(first, partitioning=None).slice(0, 1), first)
        for each in others:
            each.unlink()
        found = verified(shop, code=1)
        assert (found["missing"], sum(each["missing"] for each in found["days"])) == (10_999, 10_999)
        expected = [(each["id"], str(place)) for place, each in enumerate(shop.stored(), 1) if each["type"] == "event"]
        assert [(each["id"], each["position"]) for each in found["missingIds"]] == expected[1:10_001]


def test_a_sink_that_cannot_be_asked_is_refused(shop: Shop) -> None:
    done = run_ingestd("sinks", "verify", "archive", "--since", "1d", config=shop.config)
    assert done.returncode == 1
    assert (
        "a sink of the type jsonl cannot be asked for its ids; these can: clickhouse, iceberg, parquet, postgres"
        in done.stderr
    )
    assert "did you mean lake?" in run_ingestd("sinks", "verify", "lak", "--since", "1d", config=shop.config).stderr


CHANGED = """filter = { types = ["event", "identify"] }
[sinks.NAME.transform]
drop = ["/anonymousId", "/traits", "/data/products/*/a~1b", "/data/absent/0"]
hash = ["/userId"]
secret = "a secret of the tests"
rename = { "/data/order_id" = "order" }
"""


def test_warehouses_are_verified_whatever_a_transform_takes_from_records(tmp_path: Path) -> None:
    """Days are those of UTC, whatever the time zone of the server is."""
    with postgres_server({"timezone": "Asia/Kolkata"}) as postgres, clickhouse_server() as clickhouse:
        place = f'url = "{clickhouse.url}"\npassword = "{clickhouse.password}"'
        sinks = {"pg": f'type = "postgres"\nurl = "{postgres.url()}"', "ch": f'type = "clickhouse"\n{place}'}
        shop = Shop(
            tmp_path,
            {f"sinks.{name}": f"{text}\n{CHANGED.replace('NAME', name)}" for name, text in sinks.items()},
        )
        midnight = times.now() // 86_400_000 * 86_400_000
        data = {"order_id": "o-1", "products": [{"a/b": "HIDDEN", "sku": "s"}]}
        person = {"userId": "u-1", "anonymousId": "HIDDEN", "traits": {"email": "HIDDEN"}}
        lines = [
            {"type": kind, "messageId": f"{kind}{at}", **content, **person}
            | dict.fromkeys(("timestamp", "receivedAt"), times.format_time(at))
            for at in (midnight - 1, midnight)
            for kind, content in (("track", {"event": "Order Completed", "properties": data}), ("identify", {}))
        ]
        file = tmp_path / "messages.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        with shop.serve():
            shop.command("events", "import", str(file), "--tenant", "shop")
            wait_until(lambda: shop.is_done("sink:pg", "sink:ch"))
            for name in sinks:
                assert [each["expected"] for each in verified(shop, name, code=0)["days"]] == [2, 2]
            for rows in (postgres.sql("TABLE ingestd_records"), clickhouse.sql("SELECT * FROM ingestd_records")):
                assert "HIDDEN" not in str(rows)
                assert "u-1" not in str(rows)
            postgres.sql("UPDATE ingestd_records SET id = 'strange' WHERE position = 1")
            clickhouse.sql(
                "INSERT INTO ingestd_records (id, tenant, received_at, record)"
                f" SELECT 'strange', 'other', toDateTime({midnight // 1000}), '{{}}'"
            )
            for name, missing in (("pg", 1), ("ch", 0)):
                found = verified(shop, name, code=1)
                assert (found["missing"], found["tooMany"], found["tooManyIds"]) == (missing, 1, ["strange"])
            postgres.kill()
            done = run_ingestd("sinks", "verify", "pg", "--since", "1h", config=shop.config)
            assert done.returncode == 75
            assert "the sink pg cannot be verified now: " in done.stderr
