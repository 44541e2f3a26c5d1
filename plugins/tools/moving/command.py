"""`ingestd store copy` and `ingestd store compare`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from ingestd.api.backend import Backend
from ingestd.api.errors import CommandError
from ingestd.api.output import write, write_json
from ingestd.config import Config, load_config
from ingestd.hooks.loader import Plugins, load_plugins
from ingestd.storage.backends import Backends
from ingestd.support.terminal import table

from .ledger import sum_up
from .regrouped_comparison import compare_regrouped
from .regrouped_copy import RegroupedCopy, counts
from .sides import Side, make_backend, open_sides, refuse_missing, shown
from .store_copy import Compared, StoreCopy, compare_sides, refuse_source

__all__ = ["back_up", "compare", "copy", "restore"]


async def copy(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from_config = _config_of_source(arguments, config, plugins)

    async def source_is_idle() -> bool:
        return not await make_backend("--from", arguments.source, *from_config).daemons()

    if not arguments.prepare and not await source_is_idle():
        raise CommandError(
            f"a daemon serves from {shown(arguments.source)}; stop it, or add --prepare to copy most of it before that"
        )
    target_backend = make_backend("--to", arguments.target, config, plugins)
    source_backend = make_backend("--from", arguments.source, *from_config)
    async with _both(arguments, source_backend, target_backend, copying=True) as (source, target):

        async def ends() -> list[int]:
            return [await side.journal.last() for side in source]

        async def source_is_unchanged() -> bool:
            return await source_is_idle() and await ends() == before

        before, quiet = await ends(), arguments.quiet or arguments.json
        unknown: Counter[str] = Counter()
        compared = None
        if len(source) == len(target):
            run = StoreCopy(source, target, plugins, quiet=quiet)
            if arguments.prepare:
                await run.prepare()
            else:
                compared = await run.finish(source_is_unchanged)
        else:
            with closing(RegroupedCopy(source, target, plugins, quiet=quiet)) as regrouped:
                if arguments.prepare:
                    await regrouped.prepare()
                else:
                    compared = await regrouped.finish(source_is_unchanged, leave_unknown=arguments.leave_unknown)
                unknown = regrouped.unknown
    if arguments.json:
        _print_json(compared)
    elif compared is None:
        write(["prepared: stop the daemon, and run the same command without --prepare"])
    else:
        write(["copied, and the same on both sides:", *_lines(compared)])
        if unknown:
            write([f"left out, because their tenant is unknown: {counts(unknown)}"])


async def compare(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    from_config = _config_of_source(arguments, config, plugins)
    if await make_backend("--from", arguments.source, *from_config).daemons():
        raise CommandError(f"--from: a daemon serves from {shown(arguments.source)}; stop it first")
    target_backend = make_backend("--to", arguments.target, config, plugins)
    source_backend = make_backend("--from", arguments.source, *from_config)
    async with _both(arguments, source_backend, target_backend, copying=False) as (source, target):
        if len(source) == len(target):
            compared = [await compare_sides(ours, theirs, plugins) for ours, theirs in zip(source, target, strict=True)]
        else:
            compared = [*await compare_regrouped(source, target, plugins)]
    if arguments.json:
        _print_json(compared)
    else:
        write(["the same on both sides:", *_lines(compared)])


def _config_of_source(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> tuple[Config, Plugins]:
    """The configuration of `--from-config`, or the other store's. Raises `ConfigError`."""
    if arguments.from_config is None:
        return config, plugins
    own = load_config(Path(arguments.from_config))
    return own, load_plugins(own)


@asynccontextmanager
async def _both(
    arguments: argparse.Namespace, source: Backend, target: Backend, *, copying: bool
) -> AsyncIterator[tuple[Sequence[Side], Sequence[Side]]]:
    await refuse_missing("--from", arguments.source, source)
    if not copying:
        await refuse_missing("--to", arguments.target, target)
    if await target.daemons():
        raise CommandError(f"--to: a daemon serves from {shown(arguments.target)}; stop it first")
    async with (
        open_sides("--from", arguments.source, source) as ours,
        open_sides("--to", arguments.target, target) as theirs,
    ):
        if copying:
            await refuse_source(ours)
            await target.receive_copy()
        yield ours, theirs


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
    write_json(told)


def _told(compared: Compared) -> dict[str, object]:
    return {
        "journal": compared.journal._asdict(),
        "state": [each._asdict() for each in compared.state],
        "cursors": compared.cursors,
    }


async def back_up(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = _file(arguments)
    await Backends(config, plugins).single.back_up(file)
    write([f"written and checked: {file} ({file.stat().st_size} bytes)"])


async def restore(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = _file(arguments)
    kept = await Backends(config, plugins).single.restore(file)
    write([f"restored: {file}"])
    if kept is not None:
        write([f"the former store is {kept}"])
    write(["the data stored since the backup is lost; after the start, run `ingestd store acknowledge-loss`"])


def _file(arguments: argparse.Namespace) -> Path:
    file: Path = arguments.file
    return file.absolute()
