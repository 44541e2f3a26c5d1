"""Other readers of the tables of an iceberg sink: polars, and DuckDB with its extension, also with the models.

They are in an environment of their own, which `make test-long` installs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ingestd.plugins.models.catalogue import all_models, statements
from ingestd.plugins.models.dialects import DuckDB
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.testing.writes import span_of
from ingestd.validation.schema_files import read_schemas
from tests.support.clients import wait_until
from tests.support.daemon import Shop, run_ingestd
from tests.support.warehouses import numbered, story

from .test_iceberg import lake, of_every_table, store
from .test_upkeep import LAKE

pytestmark = pytest.mark.long
PYTHON = Path(__file__).parents[4] / ".venv" / "readers" / "bin" / "python"
DUCKDB = """
import duckdb, json, sys
from pathlib import Path
connection = duckdb.connect()
for name in ("avro", "iceberg"):
    folder = Path(__import__(f"duckdb_extension_{name}").__file__).parent
    (path,) = folder.glob(f"extensions/*/{name}.duckdb_extension")
    connection.execute(f"LOAD '{path}'")
connection.execute("SET unsafe_enable_version_guessing = true; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
*made, query = json.loads(sys.stdin.read())
for statement in made:
    connection.execute(statement)
print(json.dumps(connection.execute(query).fetchall(), default=str))
"""
POLARS = """
import json, sys
import polars
from pyiceberg.catalog import load_catalog
catalog = load_catalog("ingestd", **json.loads(sys.stdin.read()))
table = polars.scan_iceberg(catalog.load_table(("ingestd", "attributions")))
rows = table.filter(polars.col("type") == "attribution").select("position", "revenue", "currency").sort("position")
print(json.dumps(rows.collect().rows(), default=str))
"""


def read(program: str, given: Any) -> Any:
    found = subprocess.run(  # noqa: PLW1510 - the assertion below tells more
        [PYTHON, "-W", "ignore", "-c", program], input=json.dumps(given), capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake with two flushes, which were merged, and one behind them."""

    async def fill() -> None:
        sink = lake(tmp_path)
        await sink.open()
        for begin in (1, 9, 17):
            if begin == 17:
                sink.upkeep().compact(None)
            await store(sink, of_every_table(range(begin, begin + 8)))
        await sink.close()

    asyncio.run(fill())
    return tmp_path


ATTRIBUTIONS = [[position, "40.000000000000000000", "EUR"] for position in (2, 10, 18)]


def test_a_history_of_eight_years_is_imported(tmp_path: Path) -> None:
    """It has a file for each day, and a day that was imported twice has each record once."""
    days = [datetime(2018, 1, 1, tzinfo=UTC) + timedelta(day) for day in range(8 * 365 + 2)]
    lines = [
        {
            "type": "track", "event": "Page View", "messageId": f"m-{number}", "anonymousId": f"v{number % 40}",
            "properties": {}, "timestamp": day.isoformat(), "receivedAt": (day + timedelta(seconds=1)).isoformat(),
        }
        for number, day in enumerate(days)
    ]  # fmt: skip
    history = tmp_path / "history.jsonl"
    history.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shop = Shop(tmp_path, {"sinks.tables": LAKE.format(tmp_path).replace("200ms", "20s")})
    with shop.serve():
        shop.command("events", "import", str(history), "--tenant", "shop", timeout=600.0)
        shop.command("events", "import", str(history), "--tenant", "shop", timeout=600.0)
        wait_until(lambda: shop.is_done("sink:tables"), 600.0)
    counts = json.loads(shop.command("lake", "compact", "--json", timeout=600.0))
    assert counts["read"] >= len(days)
    query = (
        "SELECT year(received_at), count(*), count(DISTINCT id), count(DISTINCT received_at::DATE)"
        f" FROM iceberg_scan('{tmp_path}/lake/ingestd/events') GROUP BY 1 ORDER BY 1"
    )
    found = read(DUCKDB, [query])
    assert found == [[year, number, number, number] for year, number in Counter(day.year for day in days).items()]
    assert len(found) == 8


def test_polars_reads_the_tables(folder: Path) -> None:
    catalog = {"uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}
    assert read(POLARS, catalog) == ATTRIBUTIONS


def test_duckdb_reads_the_tables(folder: Path) -> None:
    query = (
        f"SELECT position, revenue, currency FROM iceberg_scan('{folder}/lake/ingestd/attributions')"
        " WHERE type = 'attribution' ORDER BY position"
    )
    assert read(DUCKDB, [query]) == ATTRIBUTIONS


def test_the_models_of_the_tables_are_those_of_parquet_files(tmp_path: Path) -> None:
    async def fill() -> None:
        records = await numbered(tmp_path, story(20))
        for sink in (lake(tmp_path), ParquetSink("files", ParquetSink.Options(path=tmp_path / "files"))):
            await sink.open()
            for begin in (0, len(records) // 2):
                some = records[begin : begin + len(records) // 2]
                await sink.write(some)
                await sink.flush(span_of(some))
            await sink.close()

    asyncio.run(fill())
    config = tmp_path / "ingestd.toml"
    catalog = f'{{ uri = "sqlite:///{tmp_path}/lake.db", warehouse = "file://{tmp_path}/lake" }}'
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
        f'[sinks.tables]\ntype = "iceberg"\ncatalog = {catalog}\n'
    )
    done = run_ingestd("models", "duckdb", config=config, timeout=120.0)
    assert done.returncode == 0, done.stderr
    load, *printed = done.stdout.split(";\n")[:-1]
    assert load == "LOAD iceberg"
    dialect = DuckDB(str(tmp_path / "files"), schema="files")
    made = [dialect.schema_statement(), *statements(all_models(read_schemas(None), dialect), dialect)]
    connection = duckdb.connect()
    for statement in ["SET TimeZone = 'UTC'", *made]:
        connection.execute(statement)
    for view in ("orders", "attributions", "attribution_credits", "sessions", "page_view"):
        query = "SELECT COLUMNS(*)::VARCHAR FROM {}.{} ORDER BY ALL"
        of_tables = read(DUCKDB, [*printed, query.format("ingestd", view)])
        assert [*map(tuple, of_tables)] == connection.execute(query.format("files", view)).fetchall()
        assert of_tables, view
