"""`commands.add(group, name, run, …)` makes `ingestd GROUP NAME`. The parser that it returns has `--config` already.
An argument with the `metavar` `FILE` or `DIR` completes names of files or folders.

`run(arguments, daemon)` is awaited with the store open, also beside a running daemon. Print with `write_result` of
`ingestd.api.output` for both programs and people, or with `write_data` for programs. In text for people, characters
that the terminal lacks are replaced.
"""

import argparse

from ingestd.api import hookimpl
from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.output import write_result


async def count(arguments: argparse.Namespace, daemon: Daemon) -> None:
    records = sum([await partition.journal.last() for partition in daemon.partitions])
    if records < arguments.at_least:
        raise CommandError(f"only {records} records")
    write_result({"records": records}, lines=[f"{records} records"], as_json=arguments.json)


@hookimpl
def register_commands(commands: Commands) -> None:
    parser = commands.add(
        "journal",
        "count",
        count,
        help="print how many records there are",
        examples=["ingestd journal count --at-least 1000"],
        json="print one JSON object",
    )
    parser.add_argument("--at-least", type=int, default=0, help="fail if there are fewer")
