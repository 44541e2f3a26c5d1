"""Tells operators that clients send words for nothing as ids: a counter, and a line in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum

__all__ = ["IdField", "UnusableIdReports"]

log = logging.getLogger("ingestd.ids")

_PAUSE = 3600.0  # seconds between two warnings of one field


class IdField(Enum):
    """A field of callers that holds an id."""

    __hash__ = object.__hash__

    ANONYMOUS_ID = "anonymousId"
    USER_ID = "userId"
    ORDER_ID = "order_id"


class UnusableIdReports:
    """`count` is called for each report. The log has the field and a number, and nothing that a caller has sent."""

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
            "clients send a word for nothing as %s; %d such ids since the start or the last line like this;"
            " docs/identity-and-sessions.md tells what to do", field.value, self._unlogged[field],
        )  # fmt: skip
        self._next_line[field], self._unlogged[field] = now + _PAUSE, 0
