"""An extension: typed views of the records in a warehouse, made of the schemas. docs/models.md."""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingestd.api import hookimpl
from ingestd.cli.command_line import Command, CommandLine

if TYPE_CHECKING:
    from ingestd.api.check_result import CheckResult
    from ingestd.api.sink import Sink
    from ingestd.validation.schema_files import SchemaFile

__all__ = ["check_sinks", "register_commands"]


@hookimpl
def register_commands(commands: CommandLine) -> None:
    commands.add_all(
        [
            Command(
                "models",
                f"{__name__}.command:models",
                "make typed views of the records in a warehouse: as SQL, in its database, or as a dbt package",
                [
                    "ingestd models duckdb --sink lake",
                    "ingestd models postgres --sink warehouse --apply",
                    "ingestd models dbt --to dbt",
                ],
                _add_arguments,
            )
        ]
    )


@hookimpl
def check_sinks(sinks: Sequence[Sink], files: Sequence[SchemaFile]) -> Awaitable[Sequence[CheckResult]]:
    from .warehouse import check_models  # here: most commands need none of it

    return check_models(sinks, files)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine", choices=("postgres", "clickhouse", "duckdb", "dbt"), help="whose SQL it is; dbt: a package for all"
    )
    parser.add_argument(
        "--sink", metavar="NAME",
        help="the sink that writes the records; default: the only one of the configuration that writes for this engine",
    )  # fmt: skip
    parser.add_argument(
        "--schema", metavar="NAME", type=_schema, default="ingestd",
        help="the schema, or in ClickHouse the database, of the views; default: ingestd",
    )  # fmt: skip
    parser.add_argument("--to", metavar="FOLDER", type=Path, help="the folder of the dbt package")
    parser.set_defaults(fail=parser.error)
    parser.add_argument(
        "--apply", action="store_true", help="make or change the views in the sink's database, and print their number"
    )


def _schema(text: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,62}", text):
        raise argparse.ArgumentTypeError("expected ASCII letters, digits and _")
    return text
