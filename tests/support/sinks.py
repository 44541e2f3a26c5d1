"""Helpers for tests of sinks: decoded records, options from a configuration, and an outage."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ingestd.api.events import Record
from ingestd.api.options import read_options
from ingestd.api.sink import Sink

from .clients import wait_until
from .daemon import Shop

__all__ = ["READING", "configured", "ids_of", "lines_to_read", "options_shown", "send_through_an_outage", "values"]

READING = (Path(__file__).parents[2] / "docs" / "reading-records.md").read_text()

_S = TypeVar("_S", bound=Sink)


class Server(Protocol):
    """The server that a sink writes to."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def values(records: Sequence[Record]) -> list[Any]:
    return [record.decode() for record in records]


def ids_of(records: Sequence[Record]) -> list[str]:
    return [record.decode()["id"] for record in records]


def configured(sink_class: type[_S], name: str, table: Mapping[str, Any], folder: Path) -> _S:
    """A sink with the options of this table of a configuration. Raises `ConfigError`."""
    options = read_options(sink_class.Options, table, path=f"sinks.{name}", source="x.toml", base=folder)
    return sink_class(name, options)


def lines_to_read(heading: str, language: str = "python") -> list[str]:
    """The blocks of code in this section of docs/reading-records.md."""
    section = READING.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def options_shown(page: str, kind: str, sink_class: type[Sink], folder: Path) -> Any:
    """The options of the example on a sink's page. tests/kernel/config/test_conf.py checks that none is missing."""
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    [(name, table)] = tomllib.loads(example)["sinks"].items()
    assert table.pop("type") == kind
    return configured(sink_class, name, table, folder).options


def send_through_an_outage(shop: Shop, sink: str, server: Server) -> list[str]:
    """Sends thirty events to a daemon, a third of them while the sink's server is down.

    Returns the log after all events were delivered and `ingestd check` found no fault of the sink.
    """
    with shop.serve() as daemon:
        for number in range(30):
            if number == 10:
                wait_until(lambda: daemon.metric(f'ingestd_sink_delivered_total{{sink="{sink}"}}') > 0)
                server.kill()
            if number == 20:
                server.start()
            event = {"key": "Page View", "anonymousId": "visitor", "data": {"number": number}}
            assert daemon.post("/track", event, shop.public.id).status == 200
        wait_until(lambda: daemon.metric(f'ingestd_sink_pending{{sink="{sink}"}}') == 0)
    report = json.loads(shop.command("check", "--json"))
    assert [each["status"] for each in report["sinks"] if each["name"] == sink] == ["ok"]
    return daemon.log
