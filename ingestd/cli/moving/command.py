"""`ingestd store copy` and `ingestd store compare`."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from ingestd.api.errors import CommandError
from ingestd.api.output import write
from ingestd.api.terminal import table
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

from .copying import Compared, Copying, compare_sides
from .sides import Side, make_backend, open_side, shown

__all__ = ["compare", "copy"]


async def copy(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async def source_is_idle() -> bool:
        return not await make_backend("--from", arguments.source, config, plugins).daemons()

    if not arguments.prepare and not await source_is_idle():
        raise CommandError(
            f"a daemon serves from {shown(arguments.source)}; stop it, or add --prepare to copy most of it before that"
        )
    async with _both(arguments, config, plugins) as (source, target):
        copying = Copying(source, target, source_is_idle, quiet=arguments.quiet or arguments.json)
        compared = None
        if arguments.prepare:
            await copying.prepare()
        else:
            compared = await copying.finish()
    if arguments.json:
        _print_json(compared)
    elif compared is None:
        write(["prepared: stop the daemon, and run the same command without --prepare"])
    else:
        write(["copied, and the same on both sides:", *_lines(compared)])


async def compare(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    for option, url in (("--from", arguments.source), ("--to", arguments.target)):
        if await make_backend(option, url, config, plugins).daemons():
            raise CommandError(f"{option}: a daemon serves from {shown(url)}; stop it first")
    async with _both(arguments, config, plugins) as (source, target):
        compared = await compare_sides(source, target)
    if arguments.json:
        _print_json(compared)
    else:
        write(["the same on both sides:", *_lines(compared)])


@asynccontextmanager
async def _both(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> AsyncIterator[tuple[Side, Side]]:
    source = make_backend("--from", arguments.source, config, plugins)
    target = make_backend("--to", arguments.target, config, plugins)
    if await target.daemons():
        raise CommandError(f"--to: a daemon serves from {shown(arguments.target)}; stop it first")
    async with (
        open_side("--from", arguments.source, source) as from_side,
        open_side("--to", arguments.target, target) as to_side,
    ):
        yield from_side, to_side


def _lines(compared: Compared) -> Iterator[str]:
    journal = compared.journal
    rows = [("journal", f"{journal.last - journal.first + 1} records", journal.digest)]
    rows += [(each.kind, f"{each.entries} entries", each.digest) for each in compared.state]
    for line in table(rows):
        yield f"  {line}"
    yield f"  cursors: {compared.cursors}"


def _print_json(compared: Compared | None) -> None:
    told: dict[str, object] = {"finished": compared is not None}
    if compared is not None:
        told["journal"] = compared.journal._asdict()
        told["state"] = [each._asdict() for each in compared.state]
        told["cursors"] = compared.cursors
    write([json.dumps(told)])
