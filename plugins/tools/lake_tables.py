"""The sinks of `ingestd lake`, its commands for an iceberg sink's tables, and what `ingestd forget` says of them."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ingestd.api.errors import CommandError, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.output import write_result
from ingestd.api.times import format_time, now
from ingestd.config import Config
from ingestd.delivery.options import read_sink_options
from ingestd.hooks.loader import Plugins
from ingestd.support.terminal import table
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.schema_files import complete_schemas

from .forget.traces import ERASURE
from .lake_erasures import Erasures, read_erasure

if TYPE_CHECKING:
    from ..sinks.iceberg import IcebergSink
    from ..sinks.iceberg.old_snapshots import Left

__all__ = ["compact_tables", "done", "erasures", "expire", "lake_sink", "lines_of_forget", "rewrite", "until_of_lakes"]

Result = TypeVar("Result")


async def done(sink: Any, work: Callable[[], Result]) -> Result:
    try:
        return await asyncio.to_thread(work)
    except SinkRetry as error:
        raise Unavailable(f"the lake of {sink.name}: {error}") from None
    finally:
        await sink.close()


def lake_sink(name: str | None, config: Config, plugins: Plugins, *types: str) -> tuple[str, Any]:
    """The type of a sink, and the sink itself. No other plugin can register these types."""
    names = {each: table["type"] for each, table in config.sink_tables.items() if table.get("type") in types}
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there is none"
        raise CommandError(f"name a sink of the type {' or '.join(types)}: {known}")
    assert name is not None
    kind = plugins.sinks[names[name]]
    _, options = read_sink_options(name, config.sink_tables[name], kind, config)
    sink = kind(name, options)
    if sink.needs_schemas:
        sink.schemas = complete_schemas(config.schemas.directory)
    return names[name], sink


def compact_tables(sink: IcebergSink, unusable_ids: UnusableIds, *, all_files: bool = False) -> Counter[str]:
    upkeep, run = sink.upkeep(), format_time(now())
    found = (read_erasure(body.encode(), unusable_ids) for body in upkeep.bodies(ERASURE))
    erasures = Erasures(each for each in found if each.persons)

    def change(record: Record) -> bytes | None:
        """The record without the persons. An erasure that was carried out names the run and nobody any more."""
        body = erasures.blanked_too(record)
        if body is None or record.type != ERASURE:
            return body
        return msgspec.json.encode({**msgspec.json.decode(body), "blankedAt": run})

    counts = upkeep.compact(change if erasures.ids else None, run if erasures.ids else "", all_files=all_files)
    counts["erasures"] = len(erasures.ids)
    counts["blanked"] -= len(erasures.ids)
    return counts


async def rewrite(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    _, sink = lake_sink(arguments.sink, config, plugins, "iceberg")
    unusable_ids = UnusableIds(config.ids.unusable)
    found = await done(sink, lambda: compact_tables(sink, unusable_ids, all_files=True))
    write_counts(sink, found, as_json=arguments.json)


def write_counts(sink: Any, found: Mapping[str, int], *, as_json: bool) -> None:
    counts = {name: found[name] for name in ("read", "merged", "written", "erasures", "blanked")}
    text = (
        f"{sink.name}: {counts['merged']} of {counts['read']} files became {counts['written']};"
        f" {counts['erasures']} erasures blanked {counts['blanked']} records"
    )
    keep = getattr(sink.options, "keep_snapshots", None)
    if keep is not None and counts["erasures"]:
        until = format_time(now() + int(float(keep) * 1000))
        text += f"; older snapshots have them until `ingestd lake expire` after {until}"
    write_result({"sink": sink.name, **counts}, lines=[text], as_json=as_json)


async def expire(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    _, sink = lake_sink(arguments.sink, config, plugins, "iceberg")
    keep = float(sink.options.keep_snapshots)
    age = keep if arguments.older_than is None else float(arguments.older_than)

    def work() -> tuple[Counter[str], dict[str, Left]]:
        old = sink.upkeep().old
        return old.expire(age), old.left()

    found, left = await done(sink, work)
    counts = {name: found[name] for name in ("snapshots", "files")}
    lines = [f"{sink.name}: {counts['snapshots']} snapshots and {counts['files']} files are gone"]
    until = max((_until(each, keep) for each in left.values()), default=None)
    if until is not None:
        lines.append(f"persons of erasures are in older ones until `ingestd lake expire` after {until}")
    write_result({"sink": sink.name, **counts, "personsUntil": until}, lines=lines, as_json=arguments.json)


async def erasures(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    _, sink = lake_sink(arguments.sink, config, plugins, "iceberg")

    def work() -> tuple[list[str], dict[str, Left]]:
        upkeep = sink.upkeep()
        return upkeep.bodies(ERASURE), upkeep.old.left()

    bodies, left = await done(sink, work)
    keep = float(sink.options.keep_snapshots)
    found = sorted((_state(body, left, keep) for body in bodies), key=lambda each: str(each["erasedAt"]))
    lines = [f"{sink.name}: no erasures"]
    if found:
        cells = [(str(each["id"]), str(each["erasedAt"]), _told(each)) for each in found]
        lines = [*table([("ERASURE", "ERASED AT", "PERSON"), *cells])]
    write_result(found, lines=lines, as_json=arguments.json)


def _state(body: str, left: Mapping[str, Left], keep: float) -> dict[str, Any]:
    erasure = msgspec.json.decode(body)
    at = erasure.get("blankedAt")
    rest = left.get(at)
    return {
        "id": erasure.get("id"),
        "erasedAt": erasure.get("erasedAt"),
        "blankedAt": at,
        "snapshots": None if at is None else 0 if rest is None else rest.snapshots,
        "files": None if at is None else 0 if rest is None else rest.files,
        "until": None if rest is None else _until(rest, keep),
    }


def _told(state: Mapping[str, Any]) -> str:
    if state["blankedAt"] is None:
        return "in the tables until `ingestd lake compact`"
    if state["until"] is None:
        return f"gone; blanked at {state['blankedAt']}"
    what = f"{state['snapshots']} older snapshots"
    if state["files"]:
        what += f" and {state['files']} files without a snapshot"
    return f"in {what} until `ingestd lake expire` after {state['until']}"


def _until(left: Left, keep: float) -> str:
    """When an expiry removes the last of it."""
    times = [left.newest + keep] * bool(left.snapshots) + [left.free] * bool(left.files)
    return format_time(int(max(times, default=0.0) * 1000))


def until_of_lakes(config: Config, plugins: Plugins) -> dict[str, str]:
    """When the old snapshots of each iceberg sink are gone if an erasure of this moment is compacted at once."""
    found: dict[str, str] = {}
    for name, options in config.sink_tables.items():
        if options.get("type") == "iceberg":
            own: Any
            _, own = read_sink_options(name, options, plugins.sinks["iceberg"], config)
            seconds = float(own.flush_every) + float(own.keep_snapshots)
            found[name] = format_time(now() + int(seconds * 1000))
    return found


def lines_of_forget(lakes: Mapping[str, str]) -> Iterator[str]:
    for name, until in lakes.items():
        yield f"  the lake of {name} has the person until `ingestd lake compact {name}`, and in older snapshots until"
        yield f"  `ingestd lake expire {name}`, at the earliest after {until}"
        yield f"  `ingestd lake erasures {name}` says when it is done"
