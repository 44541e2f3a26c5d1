"""Live events: the object that a pipeline needs, and a reader of the stream of a daemon."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ingestd.config import ShowData
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.outcomes import Outcomes
from ingestd.plugins.console.disclosure import Disclosure
from ingestd.plugins.console.live import LiveEvents
from ingestd.validation.validator import Validator

from .daemon import PATIENCE, Daemon

__all__ = ["EventStream", "live_events"]


def live_events(validator: Validator, level: ShowData = "shape", outcomes: Outcomes | None = None) -> LiveEvents:
    return LiveEvents(Disclosure(level, validator.sources, validator.keys), outcomes or Outcomes(Metrics()))


class EventStream:
    """A stream of server-sent events, read as a script would. A context manager, which ends the connection."""

    def __init__(self, daemon: Daemon, *, headers: Mapping[str, str] | None = None, **query: str | list[str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.ops_port, timeout=PATIENCE)
        text = urllib.parse.urlencode(query, doseq=True)
        self._connection.request("GET", f"/events?{text}", headers=dict(headers or {}))
        self.answer = self._connection.getresponse()
        self.last_id = ""
        self.came = 0
        self.text = ""
        """All lines that were read."""
        self.hello: dict[str, Any] = self._next()[1] if self.answer.status == 200 else {}
        self.earlier: list[dict[str, Any]] = self._next()[1]["rows"] if "earlier" in query else []

    def _next(self) -> tuple[str, dict[str, Any]]:
        """The next event. The end of the stream has the name "end"."""
        name, data = "", ""
        while line := self.answer.readline().decode():
            self.text += line
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.last_id = value
            elif not field and name:
                return name, json.loads(data)
        return "end", {}

    def rows(self, least: int = 1) -> list[dict[str, Any]]:
        """The next rows, at least so many."""
        found: list[dict[str, Any]] = []
        while len(found) < least:
            name, told = self._next()
            assert name == "rows", f"after {len(found)} rows: {name}"
            self.came = told["came"]
            found += told["rows"]
        return found

    def has_rows(self) -> bool:
        """Waits for rows. False if the stream ends instead."""
        return self._next()[0] == "rows"

    def wait_for_end(self) -> None:
        while self._next()[0] != "end":
            pass

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer.close()
        self._connection.close()
