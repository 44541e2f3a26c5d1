"""The models of `ingestd models` in a real PostgreSQL, a ClickHouse (chDB) and DuckDB over the files of a lake."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import pytest

from ingestd.api.errors import CommandError, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.plugins.attribution.models import MODELS
from ingestd.plugins.attribution.report import total
from ingestd.plugins.models import warehouse
from ingestd.plugins.models.catalogue import all_models, statements
from ingestd.plugins.models.dbt import write_package
from ingestd.plugins.models.dialects import DIALECTS, Dialect
from ingestd.plugins.models.model import Model
from ingestd.plugins.models.warehouse import Database, apply
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.report import Report
from ingestd.plugins.reports.text import Form, csv_lines
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.postgres import PostgresSink
from ingestd.validation.schema_files import read_schemas
from tests.support.chdb_server import chdb_server
from tests.support.daemon import run_ingestd
from tests.support.journals import until
from tests.support.ports import free_port
from tests.support.postgres_server import postgres_server
from tests.support.tcp_proxy import tcp_proxy
from tests.support.warehouse_answers import answers
from tests.support.warehouses import (
    Warehouse,
    chdb_warehouse,
    duckdb_warehouse,
    gift_schema,
    gifts,
    long_journey,
    numbered,
    postgres_warehouse,
    story,
)

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "models.md").read_text()
_QUERIES = (ROOT / "examples" / "warehouse" / "questions.sql").read_text().split("\n\n")[1:]
QUESTIONS = {re.sub(r"-- |:.*", "", head): query for head, _, query in (each.partition("\n") for each in _QUERIES)}
ENGINES = ("postgres", "clickhouse", "duckdb")


class Shop(NamedTuple):
    records: Sequence[Record]
    warehouse: Warehouse
    dialect: Dialect
    models: Sequence[Model]

    def run(self, query: str) -> list[list[Any]]:
        return self.warehouse.run(query.strip().rstrip(";"))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Record]:
    return asyncio.run(numbered(tmp_path_factory.mktemp("journal"), [*story(), *long_journey(), *gifts()]))


@pytest.fixture(scope="module", params=ENGINES)
def shop(
    request: pytest.FixtureRequest, records: Sequence[Record], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "postgres":
            made = asyncio.run(postgres_warehouse(stack.enter_context(postgres_server()), records))
        elif request.param == "clickhouse":
            made = asyncio.run(chdb_warehouse(stack.enter_context(chdb_server()), records))
        else:
            made = asyncio.run(duckdb_warehouse(folder / "lake", records))
        schemas = tmp_path_factory.mktemp("schemas")
        (schemas / "gift.json").write_text(json.dumps(gift_schema()))
        dialect = DIALECTS[request.param](made.records)
        models = all_models(read_schemas(schemas), dialect)
        for statement in [dialect.schema_statement(), *statements(models, dialect)]:
            made.run(statement)
        yield Shop(records, made, dialect, models)


def _sorted(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    plain = [
        [Decimal(each) if isinstance(each, int | Decimal) and not isinstance(each, bool) else each for each in row]
        for row in rows
    ]
    return sorted(plain, key=lambda row: [(each is None, str(each)) for each in row])


def test_the_ten_questions_have_the_answers_of_the_export(shop: Shop) -> None:
    expected = answers(record.body for record in shop.records)
    assert {*expected} == {*QUESTIONS}
    for name, query in QUESTIONS.items():
        assert len(query.splitlines()) <= 10, name
        found = shop.run(query)
        assert len(found) == len(expected[name]) > 0, name
        assert [*map(_normal, _sorted(found))] == [*map(_normal, _sorted(expected[name]))], name


def _normal(row: Sequence[Any]) -> list[Any]:
    return [each.normalize() if isinstance(each, Decimal) else each for each in row]


def test_sums_are_those_of_the_report(shop: Shop) -> None:
    by = ("channel", "source", "medium", "name")
    found: dict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    columns = f"model, is_credited, kind, {', '.join(by)}, currency"
    for model, is_credited, kind, *fields, currency, orders, revenue, reversed_ in shop.run(
        f"SELECT {columns}, sum(orders) AS o, sum(revenue) AS r, sum(reversed) AS v"
        f" FROM ingestd.net_revenue_by_campaign_day GROUP BY {columns}"
    ):
        names = [] if kind == "others" else fields
        for each in [model, *([None] if is_credited else [])]:
            pairs = zip(found[each, currency, *names], [orders, revenue, reversed_], strict=True)
            found[each, currency, *names] = [one + other for one, other in pairs]
    for model in (None, *MODELS):
        report = Report(columns_of(by), (model,), keep_case=True)
        for record in shop.records:
            report.add(record)
        rows = [line.row for line in report.lines()]
        for row in rows:
            names = ["Direct", None, None, None] if row.campaign.kind == "direct" else [*row.campaign.fields]
            amounts = (row.orders, row.revenue, row.reversed)
            for ours, theirs in zip(found[model, row.currency, *names], amounts, strict=True):
                assert abs(ours - theirs) < Decimal("0.01")
        assert len([each for each in found if each[0] == model]) == len(rows)
        for currency in {row.currency for row in rows}:
            of_currency = [row for row in rows if row.currency == currency]
            whole = total(of_currency)
            parts = [each for of, each in found.items() if of[:2] == (model, currency)]
            sums = [sum(column) for column in zip(*parts, strict=True)]
            # The report rounds like this.
            assert [round(round(Decimal(each), 6), 2) for each in sums] == [whole.orders, whole.revenue, whole.reversed]


def test_columns_have_the_documented_types(shop: Shop) -> None:
    documented = dict(re.findall(r"^\| (\w+) \| (`.*) \|$", PAGE.partition("## Kinds")[2], re.MULTILINE))
    column = 1 + ENGINES.index(shop.dialect.name) if shop.dialect.name != "duckdb" else 3
    types = {kind: row.split("|")[column - 1].strip(" `") for kind, row in documented.items()}
    queries = {
        "postgres": "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'ingestd' ORDER BY table_name, ordinal_position",
        "duckdb": "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = 'ingestd'"
        " ORDER BY table_name, column_index",
        "clickhouse": "SELECT table, name, replaceRegexpAll(type, '(LowCardinality|Nullable)\\\\((.*?)\\\\)$', '\\\\2')"
        " FROM system.columns WHERE database = 'ingestd' ORDER BY table, position",
    }
    found = defaultdict(list)
    for table, name, type_ in shop.run(queries[shop.dialect.name]):
        found[table].append((name, re.sub(r"(?:LowCardinality|Nullable)\((.*)\)", r"\1", type_)))
    assert found == {each.name: [(col.name, types[col.kind]) for col in each.columns] for each in shop.models}


def test_rows_are_unique(shop: Shop) -> None:
    of_keys = {"order_completed", "order_completed_products"}
    for model in shop.models:
        if model.name in of_keys or model.needs or model.unique[0] != "event_id":
            names = ", ".join(model.unique)
            view = shop.dialect.view(model.name)
            doubles = f"SELECT {names}, count(*) AS n FROM {view} GROUP BY {names} HAVING count(*) > 1"
            assert shop.run(doubles) == [], model.name


def test_values_of_other_types_are_null_and_numbers_exact(shop: Shop) -> None:
    names = "paper, price, is_card, sent_at, day, box_width, item_id, item_id_1bd06a, data_tenant"
    found = shop.run(f"SELECT {names} FROM ingestd.gift_wrapped ORDER BY event_id")
    assert found == [
        ["red", Decimal("0.30000000000000004"), True, "2026-02-28T22:30:00.250+00:00", "1950-02-28", Decimal("2.5"),
         "x", "y", "mine"],
        *[[None] * 9] * (len(found) - 2),
        [None, Decimal("12345678.9"), False, None, "2024-02-29", None, None, None, None],
    ]  # fmt: skip
    assert len(found) == len(gifts())
    rows = shop.run("SELECT number, label, amount FROM ingestd.gift_wrapped_ribbons ORDER BY event_id, number")
    assert rows[:4] == [[1, "a", Decimal("0.6")], [2, None, None], [3, "c", None], [4, "d", None]]


def test_profiles_have_the_newest_traits(shop: Shop) -> None:
    expected: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    first: dict[tuple[str, str], str] = {}
    for record in shop.records:
        body = record.decode()
        if body["type"] != "identify":
            continue
        tenant, visitor, user = body["tenant"], body["anonymousId"], body["userId"]
        own = (tenant, user, None) if body.get("linked") else (tenant, None, visitor)
        if body.get("linked") and (tenant, visitor) not in first:
            first[tenant, visitor] = user
            copied = dict(expected[tenant, None, visitor])
            expected[own] = copied | {
                name: each for name, each in expected[own].items() if name not in copied or copied[name][0] <= each[0]
            }
        expected[own] |= {name: (record.position, value) for name, value in body["traits"].items()}
    found = shop.run("SELECT tenant, user_id, anonymous_id, traits, email FROM ingestd.profiles")
    assert {tuple(row[:3]): json.loads(row[3]) if isinstance(row[3], str) else row[3] for row in found} == {
        key: {name: value for name, (_, value) in traits.items()} for key, traits in expected.items() if traits
    }
    assert all(row[4] == expected[tuple(row[:3])]["email"][1] for row in found)


@pytest.mark.long
def test_dbt_builds_the_package(shop: Shop, tmp_path: Path) -> None:
    folder, sink = tmp_path / "package", shop.warehouse.sink.options
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "gift.json").write_text(json.dumps(gift_schema()))
    assert write_package(folder, read_schemas(tmp_path / "schemas")) == len(shop.models) - 1
    report = Report(("channel",), keep_case=True)
    for record in shop.records:
        report.add(record)
    seed = folder / "seeds" / "attribution_report.csv"
    seed.write_text("\n".join(csv_lines(report.lines(), Form(("channel",)))))
    server = {} if shop.dialect.name == "duckdb" else _login(sink.url)
    target = {
        "postgres": {"dbname": "postgres", "host": "127.0.0.1", **server},
        "clickhouse": {"host": "127.0.0.1", "driver": "http", **server},
        "duckdb": {"path": str(tmp_path / "shop.duckdb")},
    }[shop.dialect.name]
    profile = {
        "ingestd": {"target": "test", "outputs": {"test": {"type": shop.dialect.name, "schema": "dbt", **target}}}
    }
    (folder / "profiles.yml").write_text(json.dumps(profile))
    lake = json.dumps({"ingestd_lake": str(getattr(sink, "path", ""))})

    def dbt(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / ".venv/dbt/bin/dbt"), *arguments, "--vars", lake]  # make test-long installs it
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)

    built = dbt("build")
    assert built.returncode == 0, built.stdout
    assert "WARN=0 ERROR=0 SKIP=0" in built.stdout
    assert dbt("source", "freshness").returncode == 0
    seed.write_text(re.sub(r"(?m)^([^,]+,EUR,[0-9]+)", r"\g<1>1", seed.read_text(), count=1))
    wrong = dbt("build", "--select", "attribution_report", "sums_of_report")
    assert "ERROR=1" in wrong.stdout, wrong.stdout


def _login(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    user, password = unquote(parts.username or "default"), unquote(parts.password or "")
    return {"port": parts.port, "user": user, "password": password}


@pytest.fixture
def configured(shop: Shop, tmp_path: Path) -> Path:
    """A configuration with a sink that writes to the warehouse, and a key of the shop."""
    (tmp_path / "schemas").mkdir()
    _write_schema(tmp_path, {"paper": {"type": "string"}})
    options = shop.warehouse.sink.options
    target = f"path = '{options.path}'" if shop.dialect.name == "duckdb" else f"url = '{options.url}'"
    kind = "parquet" if shop.dialect.name == "duckdb" else shop.dialect.name
    config = tmp_path / "ingestd.toml"
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
        f'[schemas]\ndirectory = "schemas"\n[sinks.warehouse]\ntype = "{kind}"\n{target}\n'
    )
    return config


def _write_schema(folder: Path, properties: dict[str, Any]) -> None:
    schema = {name: value for name, value in gift_schema().items() if name != "allOf"}
    (folder / "schemas" / "gift.json").write_text(json.dumps(schema | {"properties": properties}))


def _models(config: Path, engine: str, *arguments: str, code: int = 0) -> str:
    done = run_ingestd("models", engine, "--schema", "made", *arguments, config=config, timeout=90)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_command_makes_and_changes_views(shop: Shop, configured: Path) -> None:
    engine = shop.dialect.name
    if engine == "duckdb":
        assert "a lake has no database" in _models(configured, engine, "--apply", code=1)
        for statement in _models(configured, engine).split(";\n")[1:-2]:
            shop.run(statement)
        assert shop.run("SELECT count(*) AS n FROM made.gift_wrapped") == [[len(gifts())]]
        return

    def checked() -> str:
        page = run_ingestd("check", config=configured).stdout
        return next((line for line in page.splitlines() if "models in made" in line), page)

    shop.run("CREATE SCHEMA others" if engine == "postgres" else "CREATE DATABASE others")
    shop.run(f"CREATE TABLE others.ingestd_models (a int){'' if engine == 'postgres' else ' ENGINE = Memory'}")
    told = _models(configured, engine, "--schema", "others", "--apply", code=1)
    assert "others has ingestd_models, which ingestd has not made" in told
    count = len(shop.models) - 1  # the schema here has no ribbons, and the list is not counted
    assert f"{count - 1} views made or changed, 0 removed" in _models(configured, engine, "--apply")
    assert "are as they should be" in _models(configured, engine, "--apply")
    assert shop.run("SELECT paper FROM made.gift_wrapped WHERE paper IS NOT NULL") == [["red"]]
    assert "the models in made are those of the schemas" in checked()
    _write_schema(configured.parent, {"day": {"type": "string", "format": "date"}, "paper": {"type": "string"}})
    assert re.search(r"WARNING: the models in made are behind the schemas: gift_wrapped; run ingestd models", checked())
    shop.run("CREATE SCHEMA bi" if engine == "postgres" else "CREATE DATABASE bi")
    shop.run("CREATE VIEW bi.papers AS SELECT paper FROM made.gift_wrapped")
    if engine == "postgres":  # a column in the middle needs a new view
        told = _models(configured, engine, "--apply", code=1)
        assert "something depends on them: " in told
        assert "view bi.papers depends on view made.gift_wrapped" in told
        shop.run("CREATE OR REPLACE VIEW bi.papers AS SELECT NULL::text AS paper")
    assert re.search(r"\b[0-9]+ views made or changed, 0 removed", _models(configured, engine, "--apply"))
    assert shop.run("SELECT count(day) AS n FROM made.gift_wrapped") == [[2]]
    for view in ("bi.papers", "made.sessions", "made.page_view"):  # by hand
        shop.run(f"DROP VIEW {view}")
    assert "behind the schemas: page_view, sessions;" in checked()
    assert "2 views made or changed, 0 removed" in _models(configured, engine, "--apply")
    (configured.parent / "schemas" / "gift.json").unlink()
    assert "behind the schemas: gift_wrapped;" in checked()
    assert "0 views made or changed, 1 removed" in _models(configured, engine, "--apply")
    shop.run(f"CREATE VIEW {shop.dialect.quoted('made')}.gift_wrapped AS SELECT 1 AS mine")
    _write_schema(configured.parent, {})
    assert "made has gift_wrapped, which ingestd has not made" in _models(configured, engine, "--apply", code=1)
    assert shop.run("SELECT * FROM made.gift_wrapped") == [[1]]


async def test_two_runs_at_once_leave_the_views_of_one(shop: Shop) -> None:
    sink = shop.warehouse.sink
    if not isinstance(sink, Database):
        return
    dialect = DIALECTS[shop.dialect.name](shop.dialect.table, "twice")
    now, later = (all_models(files, dialect) for files in (read_schemas(None), read_schemas(None)[:-1]))
    for pair in ((now, now), (now, later), (later, now)):
        await asyncio.gather(*(apply(sink, models, dialect) for models in pair))
        await apply(sink, pair[0], dialect)
        assert "as they should be" in await apply(sink, pair[0], dialect)
        listed = shop.run("SELECT count(*) AS n FROM twice.ingestd_models")
        assert listed == [[len(pair[0]) - 1]]


async def test_two_runs_for_different_schemas_leave_no_view_that_the_list_lacks(shop: Shop) -> None:
    sink = shop.warehouse.sink
    if not isinstance(sink, PostgresSink):
        return  # ClickHouse has no transactions
    dialect = DIALECTS["postgres"](shop.dialect.table, "different")
    files = read_schemas(None)
    more, some, fewer = (all_models(files[: len(files) - left], dialect) for left in range(3))
    for pair in ((more, fewer), (fewer, more)):
        await apply(sink, some, dialect)
        await asyncio.gather(*(apply(sink, models, dialect) for models in pair))
        for models in (some, fewer, more):
            await apply(sink, models, dialect)
            assert len(shop.run("SELECT relname FROM pg_class WHERE relnamespace = 'different'::regnamespace")) == len(
                models
            )


class _Troubled:
    """A ClickHouse with trouble."""

    engine = "clickhouse"

    def __init__(self, database: Database) -> None:
        self.records = database.records
        self._database = database

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        return await self._database.query(text)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Self]:
        yield self

    async def execute(self, statements: Sequence[str]) -> None:
        async with self._database.alone() as transaction:
            await transaction.execute(statements)


class _Meanwhile(_Troubled):
    """Another run makes its views between the queries of this one."""

    def __init__(self, database: Database, queries: int, models: Sequence[Model], dialect: Dialect) -> None:
        super().__init__(database)
        self._queries = queries
        self._models = models
        self._dialect = dialect

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        if not self._queries:
            await apply(self._database, self._models, self._dialect)
        self._queries -= 1
        return await super().query(text)


@pytest.mark.parametrize("queries", [1, 2, 3])
async def test_views_that_another_run_makes_or_drops_meanwhile_are_not_foreign(shop: Shop, queries: int) -> None:
    sink = shop.warehouse.sink
    if not isinstance(sink, ClickHouseSink):
        return
    dialect = DIALECTS["clickhouse"](shop.dialect.table, f"meanwhile_{queries}")
    now, later = (all_models(files, dialect) for files in (read_schemas(None), read_schemas(None)[:-1]))
    for others in (now, later):
        await apply(_Meanwhile(sink, queries, others, dialect), now, dialect)
        await apply(sink, now, dialect)
        assert "as they should be" in await apply(sink, now, dialect)


async def test_views_that_nobody_could_read_are_not_made(shop: Shop) -> None:
    if shop.dialect.name != "postgres":
        return  # others refuse them without a word of ingestd
    owner = shop.warehouse.sink
    assert isinstance(owner, Database)
    async with owner.alone() as transaction:
        await transaction.execute([
            "CREATE SCHEMA theirs", "CREATE ROLE writer LOGIN PASSWORD 'writer'",
            "GRANT ALL ON SCHEMA theirs TO writer", f"GRANT INSERT, SELECT (id) ON {owner.records} TO writer",
        ])  # fmt: skip
    url = urlsplit(str(shop.warehouse.sink.options.url))
    writer = PostgresSink(
        "warehouse",
        PostgresSink.Options(url=Url(url._replace(netloc=f"writer:writer@{url.hostname}:{url.port}").geturl())),
    )
    dialect = DIALECTS["postgres"](shop.dialect.table, "theirs")
    with pytest.raises(CommandError, match="views were not changed: permission denied for table ingestd_records"):
        await apply(writer, shop.models, dialect)
    assert shop.run("SELECT 1 FROM pg_class AS c WHERE c.relnamespace = 'theirs'::regnamespace") == []
    await apply(owner, shop.models, dialect)
    async with owner.alone() as transaction:
        await transaction.execute([f"GRANT SELECT ON {owner.records} TO writer"])
    with pytest.raises(CommandError, match="or whose list the user may not read"):
        await apply(writer, shop.models, dialect)


class _Cut(_Troubled):
    """It is gone after some statements."""

    def __init__(self, database: Database, statements: int) -> None:
        super().__init__(database)
        self._statements = statements

    async def execute(self, statements: Sequence[str]) -> None:
        await super().execute(statements[: self._statements])
        if self._statements < len(statements):
            raise SinkRetry("the server is gone")


async def test_clickhouse_goes_on_where_it_failed(shop: Shop) -> None:
    if shop.dialect.name != "clickhouse":
        return  # the others change all views or none
    dialect = DIALECTS["clickhouse"](shop.dialect.table, "cut")
    now, later = (all_models(files, dialect) for files in (read_schemas(None), read_schemas(None)[:-1]))
    sink = shop.warehouse.sink
    assert isinstance(sink, Database)
    for models, cuts in ((now, (2, 20)), (later, (1, 2))):
        for cut in cuts:
            with pytest.raises(CommandError, match="the server is gone"):
                await apply(_Cut(sink, cut), models, dialect)
        await apply(_Cut(sink, 1000), models, dialect)
        assert "as they should be" in await apply(_Cut(sink, 1000), models, dialect)
        assert {row[0] for row in shop.run("SELECT name FROM system.tables WHERE database = 'cut'")} == {
            each.name for each in models
        }


@pytest.mark.parametrize("engine", ["postgres", "clickhouse"])
async def test_a_server_that_is_gone_without_a_word_is_not_waited_for(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse, "_PATIENCE", 0.2)
    monkeypatch.setattr(warehouse, "_CHECK_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        sink = (
            PostgresSink("out", PostgresSink.Options(url=Url(f"postgresql://u@127.0.0.1:{port}/x")))
            if engine == "postgres"
            else ClickHouseSink("out", ClickHouseSink.Options(url=Url(f"http://127.0.0.1:{port}")))
        )
        assert isinstance(sink, Database)
        dialect = DIALECTS[engine](sink.records)
        with pytest.raises(CommandError, match=r"may not be finished: \w+ gave no answer for 0.2 s"):
            await apply(sink, all_models(read_schemas(None), dialect), dialect)
        (found,) = await warehouse.check_models([sink], read_schemas(None))
        assert (found.status, found.text) == ("warning", "its models could not be read: no answer for 0.2 s")


async def test_a_server_that_falls_silent_in_the_middle_is_not_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = shop.warehouse.sink
    if not isinstance(sink, PostgresSink):
        return
    monkeypatch.setattr(warehouse, "_PATIENCE", 2.0)
    url = urlsplit(str(sink.options.url))
    dialect = DIALECTS["postgres"](shop.dialect.table, "silent")
    with tcp_proxy(free_port(), url.port or 0) as proxy:
        beside = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{proxy.port}"))
        other = PostgresSink("other", PostgresSink.Options(url=Url(beside.geturl())))
        async with sink.alone():
            run = asyncio.create_task(apply(other, all_models(read_schemas(None), dialect), dialect))
            await until(lambda: shop.run("SELECT count(*) AS n FROM pg_locks WHERE NOT granted") == [[1]])
            proxy.hold()
            with pytest.raises(CommandError, match="postgres gave no answer for 2 s"):
                async with asyncio.timeout(60):
                    await run


async def test_the_folder_of_a_lake_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    records = await numbered(tmp_path / "journal", gifts())
    made = await duckdb_warehouse(tmp_path / "it's [a] *?{b}", records)
    dialect = DIALECTS["duckdb"](made.records)
    for statement in [dialect.schema_statement(), *statements(all_models(read_schemas(None), dialect), dialect)]:
        made.run(statement)
    assert made.run("SELECT count(*) AS n FROM ingestd.visitors") != [[0]]


def test_a_server_that_is_gone_is_told_in_a_line(tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    for engine, url in (("postgres", "postgresql://u@127.0.0.1:1/x"), ("clickhouse", "http://127.0.0.1:1")):
        config.write_text(f'[store]\nurl = "sqlite:x.db"\n[sinks.warehouse]\ntype = "{engine}"\nurl = "{url}"\n')
        told = _models(config, engine, "--apply", code=1)
        assert "nothing was changed: " in told
        assert "Traceback" not in told


def test_tables_of_a_catalogue_over_rest_are_where_nothing_tells(tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text('[sinks.tables]\ntype = "iceberg"\ncatalog = { uri = "http://127.0.0.1:1", type = "rest" }\n')
    done = run_ingestd("models", "duckdb", config=config)
    assert done.returncode == 1
    assert "the catalogue of tables is no database, so nothing tells where its tables are" in done.stderr
