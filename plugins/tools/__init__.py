"""An extension: the commands that read, move, mend and remove data: export, import, schemas, copy, backup, forget."""

from __future__ import annotations

from collections.abc import Iterator

from ingestd.api import hookimpl
from ingestd.cli.command_line import JSON, JSON_LINES, Command, CommandLine

from .arguments import (
    add_backup_arguments,
    add_catalogue_arguments,
    add_compare_arguments,
    add_copy_arguments,
    add_expire_arguments,
    add_export_arguments,
    add_forget_arguments,
    add_import_arguments,
    add_lake_arguments,
    add_place_arguments,
    add_restore_arguments,
    add_schema_check_arguments,
    add_verify_arguments,
    add_webhook_arguments,
)

__all__ = ["register_commands"]

_SQLITE, _REDIS = "sqlite:///var/lib/ingestd/ingestd.db", "redis://10.0.0.1:6379/0"


@hookimpl
def register_commands(commands: CommandLine) -> None:
    commands.add_all(_commands())
    commands.describe("lake", "keep the files of a parquet or iceberg sink")
    commands.describe("schemas", "compare what callers send with the schemas")
    commands.describe("events", "write the stored events to standard output, or store events of files")
    commands.describe("webhooks", "try the webhooks of platforms")


def _commands() -> Iterator[Command]:
    yield Command(
        "events export",
        f"{__name__}.export:export_events",
        "print the records of the journal as JSON lines, oldest first",
        [
            'ingestd events export --key "Order Completed" --since 1h --follow',
            "ingestd events export --user u-17 --tenant shop",
        ],
        add_export_arguments,
    )
    yield Command(
        "schemas check",
        f"{__name__}.contracts.check:check_schemas",
        "name the stored events that the schemas of the configuration would refuse, and exit 1 if there are any",
        ["ingestd schemas check --against 7d", "ingestd schemas check --against 1d --config new.toml --json"],
        add_schema_check_arguments,
        json=JSON,
    )
    yield Command(
        "schemas catalogue",
        f"{__name__}.contracts.catalogue:catalogue",
        "show each event key and member that callers have sent, with types and masked examples",
        ["ingestd schemas catalogue", 'ingestd schemas catalogue --since 30d --key "Order Completed" --json'],
        add_catalogue_arguments,
        json=JSON_LINES,
    )
    yield Command(
        "events import",
        f"{__name__}.importing.command:import_events",
        "store the records and messages of files, each once",
        [
            "ingestd events import records.jsonl.gz --dry-run",
            "ingestd events import archive/ --format segment --tenant shop --state --errors faults.jsonl",
        ],
        add_import_arguments,
        json=JSON,
    )
    yield Command(
        "sinks verify",
        f"{__name__}.verifying.command:verify",
        "ask a sink's destination for its records of some time, and name what is missing or too many",
        [
            "ingestd sinks verify warehouse --since 7d",
            "ingestd sinks verify warehouse --since 1h --json",
        ],
        add_verify_arguments,
        json=JSON,
    )
    copy = f"ingestd store copy --from {_SQLITE} --to {_REDIS}"
    yield Command(
        "store copy",
        f"{__name__}.moving.command:copy",
        "copy all data of a store to an empty one, and compare both",
        [f"{copy} --prepare", copy],
        add_copy_arguments,
        json=JSON,
    )
    yield Command(
        "store compare",
        f"{__name__}.moving.command:compare",
        "compare all data of two stores, and name what differs",
        [f"ingestd store compare --from {_SQLITE} --to {_REDIS}"],
        add_compare_arguments,
        json=JSON,
    )
    yield Command(
        "partitions place",
        f"{__name__}.placing:place",
        "move a tenant with all its data to another partition",
        ["ingestd partitions place shop --partition 07"],
        add_place_arguments,
        json=JSON,
    )
    backup = "/var/lib/ingestd/backup/monday.db"
    yield Command(
        "store backup",
        f"{__name__}.moving.command:back_up",
        "write a checked copy of the SQLite store to a new file, also beside a running daemon",
        [f"ingestd store backup {backup}"],
        add_backup_arguments,
    )
    yield Command(
        "store restore",
        f"{__name__}.moving.command:restore",
        "replace the SQLite store by a backup, and keep the former file",
        [f"ingestd store restore {backup}"],
        add_restore_arguments,
    )
    yield Command(
        "lake compact",
        f"{__name__}.lake:compact",
        "merge the small files of a parquet or iceberg sink, and carry out erasures in its files",
        ["ingestd lake compact", "ingestd lake compact archive --json"],
        add_lake_arguments,
        json=JSON,
    )
    yield Command(
        "lake expire",
        f"{__name__}.lake:expire",
        "remove old snapshots of an iceberg sink's tables, and the files that only they have",
        ["ingestd lake expire", "ingestd lake expire tables --older-than 0s --json"],
        add_expire_arguments,
        json=JSON,
    )
    yield Command(
        "forget",
        f"{__name__}.forget.command:forget",
        "remove a person from state and journal, and tell the sinks",
        ["ingestd forget --user u-17 --dry-run", "ingestd forget --anonymous visitor-1 --tenant shop"],
        add_forget_arguments,
        json=JSON,
    )
    yield Command(
        "webhooks test",
        f"{__name__}.webhooks:try_webhook",
        "show the records that a platform's message becomes, without storing them",
        ['ingestd webhooks test de order.json --header "X-Shopify-Topic: orders/create"'],
        add_webhook_arguments,
    )
