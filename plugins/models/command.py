"""`ingestd models`: the views of one engine, printed or made."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ingestd.api.errors import CommandError, ConfigError, SinkFailure, SinkRetry
from ingestd.api.output import write, write_data
from ingestd.config import Config
from ingestd.delivery import make_sink_consumer
from ingestd.hooks.loader import Plugins
from ingestd.validation.schema_files import read_schemas

from .catalogue import all_models, statements
from .dbt import write_package
from .dialects import DIALECTS
from .warehouse import Database, Stored, apply

__all__ = ["models"]

_SINKS = {"postgres": ["postgres"], "clickhouse": ["clickhouse"], "duckdb": ["parquet", "iceberg"]}
_TABLES = ("LOAD iceberg", "SET unsafe_enable_version_guessing = true")
"""What DuckDB needs for tables of an iceberg sink. Their newest metadata is that with the highest number."""
_RECORDS = {"postgres": '"ingestd_records"', "clickhouse": "`default`.`ingestd_records`", "duckdb": "lake"}
"""Where the sinks write by default. The folder of Parquet files has no default."""


async def models(arguments: Namespace, config: Config, plugins: Plugins) -> None:
    engine, files = arguments.engine, read_schemas(config.schemas.directory)
    if (engine == "dbt") != (arguments.to is not None):
        arguments.fail("dbt and --to FOLDER belong together")
    if engine == "dbt":
        write([f"{write_package(arguments.to, files)} models in {arguments.to}"])
        return
    async with _sink(arguments, config, plugins) as sink:
        if sink is None and arguments.apply:
            raise CommandError(
                f"--apply needs a sink of the type {' or '.join(_SINKS[engine])}, and the configuration has none"
            )
        records = sink.records if isinstance(sink, Stored) else _RECORDS[engine]
        dialect = DIALECTS[engine](records, arguments.schema)
        made = all_models(files, dialect)
        if not arguments.apply:
            made_by = [dialect.schema_statement(), *statements(made, dialect)]
            begin = [*(_TABLES if "iceberg_scan(" in records else ()), *dialect.begin]
            write_data(f"{each};" for each in [*begin, *made_by, *dialect.end])
        elif not isinstance(sink, Database):
            raise CommandError(
                "a lake has no database to make views in: ingestd models duckdb --sink NAME | duckdb shop.duckdb"
            )
        else:
            try:
                write([await apply(sink, made, dialect)])
            except (SinkRetry, SinkFailure) as error:
                raise CommandError(f"nothing was changed: {error}") from None


@asynccontextmanager
async def _sink(arguments: Namespace, config: Config, plugins: Plugins) -> AsyncIterator[object]:
    kinds = _SINKS[arguments.engine]
    names = [name for name, table in config.sink_tables.items() if table["type"] in kinds]
    name = arguments.sink or (names[0] if len(names) == 1 else None)
    if name is None:
        if names:
            raise CommandError(
                f"several sinks write for {arguments.engine}, {', '.join(names)}: choose one with --sink"
            )
        yield None
        return
    table = config.sink_tables.get(name)
    if table is None or name not in names:
        raise CommandError(f"there is no sink {name!r} of the type {' or '.join(kinds)}")
    try:
        consumer = make_sink_consumer(name, table, plugins.sinks[table["type"]], config, transforms=plugins.transforms)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    try:
        if isinstance(consumer.sink, Stored) and not consumer.sink.records:
            raise CommandError(f"the catalogue of {name} is no database, so nothing tells where its tables are")
        yield consumer.sink
    finally:
        await consumer.close()
