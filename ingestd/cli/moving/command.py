"""`ingestd store copy` and `ingestd store compare`."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from ingestd.api.errors import CommandError
from ingestd.api.output import write
from ingestd.api.terminal import table
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

from .copying import Compared, compare_sides
from .digests import sum_up
from .division import divided
from .sides import Side, make_backend, open_sides, refuse_missing, shown
from .store_copy import StoreCopy, refuse_source

__all__ = ["compare", "copy"]


async def copy(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async def source_is_idle() -> bool:
        return not await make_backend("--from", arguments.source, config, plugins).daemons()

    if not arguments.prepare and not await source_is_idle():
        raise CommandError(
            f"a daemon serves from {shown(arguments.source)}; stop it, or add --prepare to copy most of it before that"
        )
    async with _both(arguments, config, plugins, copying=True) as (source, target):

        async def ends() -> list[int]:
            return [await side.journal.last() for side in source]

        async def source_is_unchanged() -> bool:
            return await source_is_idle() and await ends() == before

        before = await ends()
        async with _corresponding(source, target, plugins) as (ours, unknown):
            if unknown and not arguments.leave_unknown:
                raise CommandError(
                    f"the tenant of some entries of state cannot be found ({_counts(unknown)}), since the records that"
                    " they belong to were removed; add --leave-unknown to leave them out (docs/moving.md)"
                )
            run = StoreCopy(ours, target, quiet=arguments.quiet or arguments.json)
            compared = None
            if arguments.prepare:
                await run.prepare()
            else:
                compared = await run.finish(source_is_unchanged)
    if arguments.json:
        _print_json(compared)
    elif compared is None:
        write(["prepared: stop the daemon, and run the same command without --prepare"])
    else:
        write(["copied, and the same on both sides:", *_lines(compared)])
        if unknown:
            write([f"left out, because their tenant is unknown: {_counts(unknown)}"])


async def compare(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    for option, url in (("--from", arguments.source), ("--to", arguments.target)):
        if await make_backend(option, url, config, plugins).daemons():
            raise CommandError(f"{option}: a daemon serves from {shown(url)}; stop it first")
    async with (
        _both(arguments, config, plugins, copying=False) as (source, target),
        _corresponding(source, target, plugins) as (parts, _),
    ):
        compared = [await compare_sides(ours, theirs) for ours, theirs in zip(parts, target, strict=True)]
    if arguments.json:
        _print_json(compared)
    else:
        write(["the same on both sides:", *_lines(compared)])


@asynccontextmanager
async def _both(
    arguments: argparse.Namespace, config: Config, plugins: Plugins, *, copying: bool
) -> AsyncIterator[tuple[Sequence[Side], Sequence[Side]]]:
    source = make_backend("--from", arguments.source, config, plugins)
    target = make_backend("--to", arguments.target, config, plugins)
    await refuse_missing("--from", arguments.source, source)
    if not copying:
        await refuse_missing("--to", arguments.target, target)
    if await target.daemons():
        raise CommandError(f"--to: a daemon serves from {shown(arguments.target)}; stop it first")
    async with (
        open_sides("--from", arguments.source, source) as ours,
        open_sides("--to", arguments.target, target) as theirs,
    ):
        if len(ours) != len(theirs) and len(ours) > 1:
            raise CommandError(
                f"{ours[0].url} has {len(ours)} partitions, and {theirs[0].url} has {len(theirs)}: a store with several"
                " partitions can only be copied to one with as many"
            )
        if len(ours) != len(theirs) and copying and arguments.prepare:
            raise CommandError(
                "--prepare: a store cannot be divided into partitions beside a daemon; stop it, and copy without this"
            )
        if copying:
            await refuse_source(ours)
            await target.receive_copy()
        yield ours, theirs


@asynccontextmanager
async def _corresponding(
    source: Sequence[Side], target: Sequence[Side], plugins: Plugins
) -> AsyncIterator[tuple[Sequence[Side], Counter[str]]]:
    """The source in as many partitions as the target, and the numbers of entries that were left out, by kind."""
    if len(source) == len(target):
        yield source, Counter()
        return
    async with divided(source[0], target, plugins) as division:
        yield division.parts, division.unknown


def _counts(unknown: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(unknown.items()))


def _lines(compared: Sequence[Compared]) -> Iterator[str]:
    rows = []
    for each in compared:
        journal, place = each.journal, f"journal of {each.name}" if each.name else "journal"
        rows.append((place, f"{journal.last - journal.first + 1} records", journal.digest))
    kinds = sum_up(kind for each in compared for kind in each.state)
    rows += [(each.kind, f"{each.entries} entries", each.digest) for each in kinds]
    for line in table(rows):
        yield f"  {line}"
    yield f"  cursors: {sum(each.cursors for each in compared)}"


def _print_json(compared: Sequence[Compared] | None) -> None:
    told: dict[str, object] = {"finished": compared is not None}
    if compared is not None:
        parts = [_told(each) for each in compared]
        if len(parts) > 1:
            names = [{"partition": each.name} for each in compared]
            told["partitions"] = [name | part for name, part in zip(names, parts, strict=True)]
        else:
            told |= parts[0]
    write([json.dumps(told)])


def _told(compared: Compared) -> dict[str, object]:
    return {
        "journal": compared.journal._asdict(),
        "state": [each._asdict() for each in compared.state],
        "cursors": compared.cursors,
    }
