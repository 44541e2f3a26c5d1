"""The views in a sink's database: making and changing them, and whether they are behind the schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from ingestd.api.check_result import CheckResult
from ingestd.api.errors import CommandError, IngestdError
from ingestd.api.sink import Sink
from ingestd.validation.schema_files import SchemaFile

from .catalogue import MODELS, all_models, list_of, statements
from .dialects import DIALECTS, ClickHouse, Dialect
from .model import Model

__all__ = ["Database", "Stored", "apply", "check_models"]

_NO_OTHER_COLUMNS = "(SQLSTATE 42P16)"
"""PostgreSQL replaces a view only by one with the same columns, and perhaps more at the end."""
_SHOWN = 5
_PATIENCE, _CHECK_PATIENCE = 600.0, 30.0  # seconds: a server may be gone without a word


@runtime_checkable
class Stored(Protocol):
    """A sink whose records can be read with SQL."""

    @property
    def records(self) -> str:
        """Its table as it stands in SQL, or the folder of its files. Empty if its options do not tell where that is."""


class Queries(Protocol):
    """A place that answers SQL."""

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        """The rows of a result."""


class Transaction(Queries, Protocol):
    """A place that carries out SQL, too."""

    async def execute(self, statements: Sequence[str]) -> None:
        """Carry out all statements, or none if the engine has transactions."""


@runtime_checkable
class Database(Stored, Queries, Protocol):
    """A sink whose destination answers SQL."""

    engine: str
    """The name of its dialect."""

    def alone(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction. It waits for the end of the one before, if the engine has transactions."""


async def apply(database: Database, models: Sequence[Model], dialect: Dialect) -> str:
    """Make and change the views of the models, and remove views of former ones. Returns what was done.

    A view that others depend on is never dropped with them. Then nothing changes, as far as the engine can.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            async with database.alone() as transaction:
                return await _apply(transaction, models, dialect)
    except TimeoutError:
        raise CommandError(
            f"the views may not be finished: {dialect.name} gave no answer for {_PATIENCE:g} s; run the command again"
        ) from None


async def _apply(transaction: Transaction, models: Sequence[Model], dialect: Dialect) -> str:
    relations, listed = await _listed(transaction, dialect)
    if {records for _, records in listed.values()} - {dialect.table}:
        raise CommandError(f"the views in {dialect.schema} read another table: choose another --schema")
    if foreign := sorted(relations & {each.name for each in models} - {*listed, *([MODELS] if listed else [])}):
        raise CommandError(
            f"{dialect.schema} has {_few(foreign)}, which ingestd has not made, or whose list the user may not read:"
            " choose another --schema"
        )
    digests = {name: digest for name, (digest, _) in listed.items() if name in relations}
    changed = [each for each in models[:-1] if digests.get(each.name) != each.digest(dialect)]
    former = [name for name in digests if name not in {each.name for each in models}]
    if not changed and not former:
        return f"all {len(models)} views in {dialect.schema} are as they should be"
    # ClickHouse may fail between two statements. Then the next run knows all views by this list.
    unfinished = {each.name: each.digest(dialect) for each in models[:-1]}
    unfinished = {**unfinished, **dict.fromkeys([*former, *(each.name for each in changed)], "")}
    made = statements([list_of(unfinished, dialect), *changed], dialect)
    # Another run at the same time may have dropped them.
    drops = [f"DROP VIEW IF EXISTS {dialect.view(name)}" for name in reversed(former)]
    schema = [] if await transaction.query(_schemas(dialect)) else [dialect.schema_statement()]
    try:
        # PostgreSQL makes views of a table that the user may not read, but nobody can read them then.
        await transaction.query(f"SELECT record FROM {dialect.table} LIMIT 0")
        await transaction.execute([*schema, *made, *drops, *statements(models[-1:], dialect)])
    except IngestdError as error:
        if _NO_OTHER_COLUMNS not in str(error):
            raise CommandError(f"the views were not changed: {error}") from None
        await _make_again(transaction, models, dialect, [*digests, MODELS])
    return f"{len(changed)} views made or changed, {len(former)} removed in {dialect.schema}"


async def _make_again(
    transaction: Transaction, models: Sequence[Model], dialect: Dialect, present: Sequence[str]
) -> None:
    """Drop all views of ingestd and make them again."""
    drops = [f"DROP VIEW IF EXISTS {dialect.view(name)}" for name in reversed(present)]
    try:
        await transaction.execute([*drops, *statements(models, dialect)])
    except IngestdError as error:
        raise CommandError(
            f"nothing was changed: columns have changed, so views must be made anew, and something depends on them:"
            f" {error}; drop that first"
        ) from None


def _schemas(dialect: Dialect) -> str:
    """Creating one that exists needs the right, too."""
    if isinstance(dialect, ClickHouse):
        return f"SELECT name FROM system.databases WHERE name = '{dialect.schema}'"
    return f"SELECT nspname FROM pg_namespace WHERE nspname = '{dialect.schema}'"


def _relations(dialect: Dialect) -> str:
    if isinstance(dialect, ClickHouse):
        return f"SELECT name FROM system.tables WHERE database = '{dialect.schema}'"
    return (
        "SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = '{dialect.schema}' AND c.relkind IN ('r', 'v', 'm', 'p', 'f')"
    )


async def _listed(database: Queries, dialect: Dialect) -> tuple[set[str], dict[str, tuple[str, str]]]:
    """What the schema has, and the digest of each listed view and what it reads, in the order in which they were made.

    Somebody may have dropped a view that is listed.
    """
    before = await database.query(_relations(dialect))
    rows: Sequence[Mapping[str, Any]] = []
    if dialect.schema in await _places(database, type(dialect)):
        rows = await database.query(f"SELECT model, digest, records FROM {dialect.view(MODELS)} ORDER BY number")
    after = await database.query(_relations(dialect))
    # Between the queries, another run may make views or drop them. They count as missing, not as somebody else's.
    relations = {row["name"] for row in before} & {row["name"] for row in after}
    return relations, {row["model"]: (row["digest"], row["records"]) for row in rows}


async def _places(database: Queries, kind: type[Dialect]) -> list[str]:
    """The schemas with a list that the user may read. Somebody else's table may have the name of the list."""
    schema, table, name = (
        ("database", "table", "name") if kind is ClickHouse else ("table_schema", "table_name", "column_name")
    )
    columns = "system.columns" if kind is ClickHouse else "information_schema.columns"
    found = f"SELECT {schema} AS place FROM {columns} WHERE {table} = '{MODELS}' AND {name} IN ('digest', 'records')"
    return [row["place"] for row in await database.query(f"{found} GROUP BY {schema} HAVING count(*) = 2")]


async def check_models(sinks: Sequence[Sink], files: Sequence[SchemaFile]) -> Sequence[CheckResult]:
    """For `ingestd check`: warnings for the databases whose views are not those of the schemas."""
    found: list[CheckResult] = []
    for sink in sinks:
        if isinstance(sink, Database):
            try:
                async with asyncio.timeout(_CHECK_PATIENCE):
                    found += await _of_database(sink, sink.name, files)
            except (IngestdError, TimeoutError) as error:
                reason = str(error) or f"no answer for {_CHECK_PATIENCE:g} s"
                found.append(CheckResult(sink.name, f"its models could not be read: {reason}", "warning"))
    return found


async def _of_database(database: Database, name: str, files: Sequence[SchemaFile]) -> list[CheckResult]:
    found = []
    kind = DIALECTS[database.engine]
    for place in await _places(database, kind):
        dialect = kind(database.records, place)
        relations, listed = await _listed(database, dialect)
        if dialect.table not in {records for _, records in listed.values()}:
            continue
        digests = {name: digest for name, (digest, _) in listed.items() if name in relations}
        wanted = {each.name: each.digest(dialect) for each in all_models(files, dialect)[:-1]}
        behind = [each for each in wanted if digests.get(each) != wanted[each]]
        behind += [each for each in digests if each not in wanted]
        if behind:
            text = (
                f"the models in {dialect.schema} are behind the schemas: {_few(behind)};"
                f" run ingestd models {dialect.name} --sink {name} --schema {dialect.schema} --apply"
            )
            found.append(CheckResult(name, text, "warning"))
        else:
            found.append(CheckResult(name, f"the models in {dialect.schema} are those of the schemas"))
    return found


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
