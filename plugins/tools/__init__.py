"""An extension: all commands for operators, but those of single plugins, models and the document of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingestd.api import hookimpl
from ingestd.api.backend import Partition
from ingestd.api.check_result import CheckResult
from ingestd.cli.command_line import JSON, JSON_LINES, Command, CommandLine

from . import arguments, completion, reload, systemd_units

if TYPE_CHECKING:
    from ingestd.validation.validator import Validator

__all__ = ["find_faults", "register_commands", "try_schemas"]

_SQLITE, _REDIS = "sqlite:///var/lib/ingestd/ingestd.db", "redis://10.0.0.1:6379/0"

_GROUPS = {
    "config": "show the configuration",
    "events": "write the stored events to standard output, or store events of files",
    "lake": "keep the files of a parquet or iceberg sink",
    "partitions": "show and move what the partitions of the store have",
    "plugins": "show the plugins",
    "schemas": "compare what callers send with the schemas",
    "sinks": "show and control the delivery to sinks",
    "sinks dead-letters": "show, repeat or delete the records that a sink has refused",
    "store": "copy, check and mend the store",
    "webhooks": "try the webhooks of platforms",
}


@hookimpl
def register_commands(commands: CommandLine) -> None:
    commands.add_all(_commands())
    for group, sentence in _GROUPS.items():
        commands.describe(group, sentence)


def _commands() -> Iterator[Command]:
    yield Command(
        "reload",
        f"{__name__}.reload:reload",
        "have running daemons read the configuration again, and print the outcome",
        ["ingestd reload", "ingestd reload --config /etc/ingestd/ingestd.toml --timeout 10s"],
        reload.add_arguments,
        runs_without="any",
    )
    yield Command(
        "check",
        f"{__name__}.check.command:check",
        "check configuration, schemas, plugins, store and sinks",
        ["ingestd check", "ingestd check --config new.toml --json"],
        json=JSON,
        runs_without="any",
    )
    yield Command(
        "config show",
        f"{__name__}.config:show",
        "print the configuration in force, secrets hidden",
        ["ingestd config show", "ingestd config show --set http.max_body=2MiB"],
        json=JSON,
    )
    yield Command(
        "store acknowledge-loss",
        f"{__name__}.moving.command:acknowledge_loss",
        "go on without the data that the store has lost",
        ["ingestd store acknowledge-loss"],
    )
    yield Command(
        "store upgrade",
        f"{__name__}.moving.command:upgrade",
        "upgrade the store of an earlier version, without a running daemon, and keep a copy",
        ["ingestd store upgrade", "ingestd store upgrade --no-copy"],
        arguments.of_upgrade,
    )
    yield Command(
        "partitions show",
        f"{__name__}.partitions:show",
        "show the partitions of the store, and which tenants load them",
        ["ingestd partitions show", "ingestd partitions show shop --json"],
        arguments.of_load,
        json=JSON_LINES,
    )
    yield Command(
        "plugins list",
        f"{__name__}.config:list_plugins",
        "show the plugins in force and their origin",
        ["ingestd plugins list"],
        json=JSON_LINES,
    )
    yield Command(
        "sinks status",
        f"{__name__}.sinks.status:status",
        "show the progress of each sink, its failures and its dead letters",
        ["ingestd sinks status", "ingestd sinks status warehouse --json"],
        arguments.of_sinks,
        json=JSON_LINES,
    )
    yield Command(
        "sinks replay",
        f"{__name__}.sinks.replay:replay",
        "write records to a sink again",
        [
            "ingestd sinks replay warehouse --from 2h",
            'ingestd sinks replay warehouse --from 2026-03-01 --to 2026-03-02 --key "Order Completed"',
        ],
        arguments.of_replay,
        json=JSON,
    )
    for name, what in (
        ("pause", "stop writing to a sink until it is resumed"),
        ("resume", "continue writing to a paused sink"),
    ):
        target = f"{__name__}.sinks.pausing:{name}"
        yield Command(f"sinks {name}", target, what, [f"ingestd sinks {name} warehouse"], arguments.of_sink, json=JSON)
    letters, module = "sinks dead-letters", f"{__name__}.sinks.letters"
    example = f"ingestd {letters}"
    yield Command(
        f"{letters} list",
        f"{module}:list_letters",
        "show all dead letters of a sink",
        [f"{example} list warehouse"],
        arguments.of_sink,
        json=JSON_LINES,
    )
    yield Command(
        f"{letters} show",
        f"{module}:show",
        "show one dead letter with its record",
        [f"{example} show warehouse 3"],
        arguments.of_letter,
        json=JSON,
    )
    yield Command(
        f"{letters} retry",
        f"{module}:retry",
        "write dead letters to the sink again",
        [f"{example} retry warehouse 3", f"{example} retry warehouse --all"],
        arguments.of_letters,
        json=JSON,
    )
    yield Command(
        f"{letters} discard",
        f"{module}:discard",
        "delete dead letters for good",
        [f"{example} discard warehouse 3-7 --yes"],
        arguments.of_letters_to_discard,
        json=JSON,
    )
    yield Command(
        "events export",
        f"{__name__}.export:export_events",
        "print the records of the journal as JSON lines, oldest first",
        [
            'ingestd events export --key "Order Completed" --since 1h --follow',
            "ingestd events export --user u-17 --tenant shop",
        ],
        arguments.of_export,
    )
    yield Command(
        "schemas check",
        f"{__name__}.contracts.trial:check_schemas",
        "name the stored events that the schemas of the configuration would refuse, and exit 1 if there are any",
        ["ingestd schemas check --against 7d", "ingestd schemas check --against 1d --config new.toml --json"],
        arguments.of_schema_check,
        json=JSON,
    )
    yield Command(
        "schemas catalogue",
        f"{__name__}.contracts.catalogue:catalogue",
        "show each event key and member that callers have sent, with types and masked examples",
        ["ingestd schemas catalogue", 'ingestd schemas catalogue --since 30d --key "Order Completed" --json'],
        arguments.of_catalogue,
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
        arguments.of_import,
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
        arguments.of_verify,
        json=JSON,
    )
    copy = f"ingestd store copy --from {_SQLITE} --to {_REDIS}"
    yield Command(
        "store copy",
        f"{__name__}.moving.command:copy",
        "copy all data of a store to an empty one, and compare both",
        [f"{copy} --prepare", copy],
        arguments.of_copy,
        json=JSON,
    )
    yield Command(
        "store compare",
        f"{__name__}.moving.command:compare",
        "compare all data of two stores, and name what differs",
        [f"ingestd store compare --from {_SQLITE} --to {_REDIS}"],
        arguments.of_compare,
        json=JSON,
    )
    yield Command(
        "partitions place",
        f"{__name__}.placing:place",
        "move a tenant with all its data to another partition",
        ["ingestd partitions place shop --partition 07"],
        arguments.of_place,
        json=JSON,
    )
    backup = "/var/lib/ingestd/backup/monday.db"
    yield Command(
        "store backup",
        f"{__name__}.moving.command:back_up",
        "write a checked copy of the SQLite store to a new file, also beside a running daemon",
        [f"ingestd store backup {backup}"],
        arguments.of_backup,
    )
    yield Command(
        "store restore",
        f"{__name__}.moving.command:restore",
        "replace the SQLite store by a backup, and keep the former file",
        [f"ingestd store restore {backup}"],
        arguments.of_restore,
    )
    yield Command(
        "lake compact",
        f"{__name__}.lake:compact",
        "merge the small files of a parquet or iceberg sink, and carry out erasures in its files",
        ["ingestd lake compact", "ingestd lake compact archive --json"],
        arguments.of_lake,
        json=JSON,
    )
    yield Command(
        "lake rewrite",
        f"{__name__}.lake_tables:rewrite",
        "write all files of an iceberg sink again: merged, sorted, and with the columns of schemas that came later",
        ["ingestd lake rewrite", "ingestd lake rewrite tables --json"],
        arguments.of_lake,
        json=JSON,
    )
    yield Command(
        "lake erasures",
        f"{__name__}.lake_tables:erasures",
        "say which erasures the tables of an iceberg sink wait for, and when older snapshots are without the persons",
        ["ingestd lake erasures", "ingestd lake erasures tables --json"],
        arguments.of_lake,
        json=JSON,
    )
    yield Command(
        "lake expire",
        f"{__name__}.lake_tables:expire",
        "remove old snapshots of an iceberg sink's tables, and the files that only they have",
        ["ingestd lake expire", "ingestd lake expire tables --older-than 0s --json"],
        arguments.of_expire,
        json=JSON,
    )
    yield Command(
        "forget",
        f"{__name__}.forget.command:forget",
        "remove a person from state and journal, and tell the sinks",
        ["ingestd forget --user u-17 --dry-run", "ingestd forget --anonymous visitor-1 --tenant shop"],
        arguments.of_forget,
        json=JSON,
    )
    yield Command(
        "webhooks test",
        f"{__name__}.webhooks:try_webhook",
        "show the records that a platform's message becomes, without storing them",
        ['ingestd webhooks test de order.json --header "X-Shopify-Topic: orders/create"'],
        arguments.of_webhook,
    )
    yield Command(
        "install-units",
        f"{__name__}.systemd_units:install_units",
        "install the systemd units",
        ["ingestd install-units --dry-run", "ingestd install-units --prefix /opt/ingestd --outgoing"],
        systemd_units.add_arguments,
        runs_without="any",
    )
    yield Command(
        "completion",
        f"{__name__}.completion:print_completion",
        "print a shell completion script",
        ["ingestd completion bash", "ingestd completion fish --config /etc/ingestd/ingestd.toml"],
        completion.add_arguments,
        runs_without="found",
    )


@hookimpl
def find_faults(file: Path, overrides: Sequence[str]) -> Sequence[str]:
    from .check.config_faults import every_fault  # here: few commands need it

    return every_fault(file, overrides)


@hookimpl
def try_schemas(
    validator: Validator, partitions: Sequence[Partition], seconds: float
) -> Awaitable[Sequence[CheckResult]]:
    from .contracts.trial import warnings  # here: few commands need it

    return warnings(validator, partitions, seconds)
