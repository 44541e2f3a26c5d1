"""All faults of a configuration, whose loading stops at the first one, and what a valid one risks.

Risks are connections that somebody could read or fake, and filters that let traits pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError
from ingestd.api.options import has_credentials, password_in_clear
from ingestd.api.sink import Sink
from ingestd.config import SECTIONS, Config, parse_config, read_tables
from ingestd.delivery import make_sink_consumer
from ingestd.delivery.options import FilterOptions
from ingestd.hooks.loader import load_plugins

__all__ = ["every_fault", "filter_risks", "show_risks", "sink_risks", "url_risks"]

_Tables = Mapping[str, Any]


def every_fault(file: Path, overrides: Iterable[str]) -> list[str]:
    """The faults of the file with the arguments of `--set`, each as the message of its `ConfigError`.

    The search removes each faulty part and reads the rest again. It tries first what the fault names: without
    `plugins.also`, the section of a plugin would be another fault. A plugin's or sink's section reports only its first
    fault: without the faulty option, the section could lack a required one.
    """
    try:
        tables, given = read_tables(file, overrides)
    except ConfigError as error:
        return [str(error)]

    def read(tables: _Tables) -> str | None:
        try:
            config = parse_config(tables, source=str(file), base=file.resolve().parent, overrides=given)
            plugins = load_plugins(config)
            for name, table in config.sink_tables.items():
                sink_class = plugins.sinks[table["type"]]
                make_sink_consumer(name, table, sink_class, config, transforms=plugins.transforms)
        except ConfigError as error:
            return str(error)
        return None

    faults: list[str] = []
    while (fault := read(tables)) is not None:
        faults.append(fault)
        parts = sorted(_smaller(tables), key=lambda part: part[0] not in fault)
        rest = next((smaller for _, smaller in parts if read(smaller) != fault), None)
        if rest is None:
            break
        tables = rest
    return faults


def _smaller(tables: _Tables) -> Iterator[tuple[str, dict[str, Any]]]:
    """The path of each part of the tables, and the tables without it."""
    for name, table in tables.items():
        others = {each: value for each, value in tables.items() if each != name}
        if isinstance(table, dict) and (name in SECTIONS or name == "sinks"):
            for option in table:
                yield f"{name}.{option}", {**others, name: {each: table[each] for each in table if each != option}}
        else:
            yield name, others


_WITH_TLS = {"https", "rediss", "tls"}


def url_risks(config: Config) -> Iterator[str]:
    """The risks of the URLs of store and journal."""
    for option, url in (("store.url", config.store.url), ("journal.url", config.journal.url)):
        if url and has_credentials(url) and url.partition(":")[0].partition("+")[0] not in _WITH_TLS:
            yield from password_in_clear(option, url, "use the URL's scheme with TLS, such as rediss")


def show_risks(risks: Iterable[str]) -> Iterator[CheckResult]:
    for risk in risks:
        option, _, text = risk.partition(": ")
        yield CheckResult(option, text, "warning")


def sink_risks(sink: Sink) -> Sequence[CheckResult]:
    """The risks of a sink. A plugin may raise anything, which stops no start, and so is a warning too."""
    try:
        return [*show_risks(sink.risks())]
    except Exception as error:  # noqa: BLE001
        return [CheckResult(sink.name, f"its risks could not be read: {error!r}", "warning")]


def filter_risks(name: str, options: FilterOptions) -> Iterator[str]:
    """The risks of a sink's filter: ingestd 0.2 left out every identify request if a filter had keys."""
    if options.keys is not None and "identify" in (options.types or ()):
        text = "keys limits events only, so all persons' traits pass; remove identify from types unless you want them"
        yield f"sinks.{name}.filter: {text}"
