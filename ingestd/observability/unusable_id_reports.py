"""Reports of unusable ids, such as "null": a counter, and at most one log line an hour for each field."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum

__all__ = ["IdField", "UnusableIdReports"]

log = logging.getLogger("ingestd.ids")

_PAUSE = 3600.0  # seconds between two warnings about one field


class IdField(Enum):
    """A field of a request that holds an id."""

    __hash__ = object.__hash__

    ANONYMOUS_ID = "anonymousId"
    USER_ID = "userId"
    ORDER_ID = "order_id"


class UnusableIdReports:
    """Each report calls `count`. The log shows the field and a number, never a value that a caller sent."""

    def __init__(self, count: Callable[[IdField], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._unlogged = dict.fromkeys(IdField, 0)
        self._next_line = dict.fromkeys(IdField, float("-inf"))

    def report(self, field: IdField) -> None:
        self._count(field)
        self._unlogged[field] += 1
        now = self._clock()
        if now < self._next_line[field]:
            return
        log.warning(
            "clients send unusable ids as %s; %d of them since the start or the last line like this;"
            " see docs/identity-and-sessions.md", field.value, self._unlogged[field],
        )  # fmt: skip
        self._next_line[field], self._unlogged[field] = now + _PAUSE, 0
