"""The commands of `ingestd store`: copy, compare, backup, restore, upgrade and acknowledge-loss."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

from ingestd.api.backend import Backend, MissingPartitions
from ingestd.api.errors import CommandError
from ingestd.api.output import write, write_result
from ingestd.config import Config, load_config
from ingestd.hooks.loader import Plugins, load_plugins
from ingestd.storage.backends import Backends, open_backends
from ingestd.support.terminal import table

from .comparison import Compared, compare_regrouped, compare_sides, ends_of
from .ledger import sum_up
from .regrouped_copy import RegroupedCopy, counts
from .sides import Side, make_backend, open_sides, refuse_missing, shown
from .store_copy import StoreCopy, refuse_source

__all__ = ["acknowledge_loss", "back_up", "compare", "copy", "restore", "upgrade"]


async def copy(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    make_source = _maker_of_source(arguments, config, plugins)

    async def source_is_idle() -> bool:
        return not await make_source().daemons()

    if not arguments.prepare and not await source_is_idle():
        raise CommandError(
            f"a daemon serves from {shown(arguments.source)}; stop it, or add --prepare to copy most of it before that"
        )
    async with _both(arguments, make_source(), config, plugins, copying=True) as (source, target):

        async def source_is_unchanged() -> bool:
            return await source_is_idle() and await ends_of(source) == before

        before, quiet = await ends_of(source), arguments.quiet or arguments.json
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
    lines = ["prepared: stop the daemon, and run the same command without --prepare"]
    if compared is not None:
        lines = ["copied, and the same on both sides:", *_lines(compared)]
        if unknown:
            lines.append(f"left out, because their tenant is unknown: {counts(unknown)}")
    write_result(_facts(compared), lines=lines, as_json=arguments.json)


async def compare(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    make_source = _maker_of_source(arguments, config, plugins)
    if await make_source().daemons():
        raise CommandError(f"--from: a daemon serves from {shown(arguments.source)}; stop it first")
    async with _both(arguments, make_source(), config, plugins, copying=False) as (source, target):
        if len(source) == len(target):
            compared = [await compare_sides(ours, theirs, plugins) for ours, theirs in zip(source, target, strict=True)]
        else:
            compared = [*await compare_regrouped(source, target, plugins)]
    write_result(_facts(compared), lines=["the same on both sides:", *_lines(compared)], as_json=arguments.json)


def _maker_of_source(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> Callable[[], Backend]:
    """Makes the back end of `--from`, by `--from-config` or the other store's configuration. Raises `ConfigError`."""
    if arguments.from_config is not None:
        config = load_config(Path(arguments.from_config))
        plugins = load_plugins(config)
    return partial(make_backend, "--from", arguments.source, config, plugins)


@asynccontextmanager
async def _both(
    arguments: argparse.Namespace, source: Backend, config: Config, plugins: Plugins, *, copying: bool
) -> AsyncIterator[tuple[Sequence[Side], Sequence[Side]]]:
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


def _facts(compared: Sequence[Compared] | None) -> dict[str, object]:
    if compared is None:
        return {"finished": False}
    if len(compared) == 1:
        return {"finished": True, **_told(compared[0])}
    return {"finished": True, "partitions": [{"partition": each.name, **_told(each)} for each in compared]}


def _told(compared: Compared) -> dict[str, object]:
    return {
        "journal": compared.journal._asdict(),
        "state": [each._asdict() for each in compared.state],
        "cursors": compared.cursors,
    }


async def back_up(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = arguments.file.absolute()
    await Backends(config, plugins).single.back_up(file)
    write([f"written and checked: {file} ({file.stat().st_size} bytes)"])


async def restore(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    file = arguments.file.absolute()
    kept = await Backends(config, plugins).single.restore(file)
    write([f"restored: {file}"])
    if kept is not None:
        write([f"the former store is {kept}"])
    write(["the data stored since the backup is lost; after the start, run `ingestd store acknowledge-loss`"])


async def upgrade(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Bring the data to this version, as the next start of the daemon would."""
    done = await Backends(config, plugins).upgrade(keep=not arguments.no_copy)
    write(done or ["the store is of this version already"])


async def acknowledge_loss(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    is_any = False
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        for partition in backends.partitions:
            with missing.tolerating(partition):
                loss = partition.store.loss
                if await partition.store.clear_loss():
                    is_any = True
                    write([f"acknowledged: {f'partition {partition.name}: ' if partition.name else ''}{loss}"])
    if not is_any:
        write(["there is no loss of data to acknowledge"])
    missing.check("a loss there is not acknowledged")
